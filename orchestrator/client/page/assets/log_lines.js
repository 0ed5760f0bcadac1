// The kind of a log line: its level, and whether every start of TensorFlow prints it.
(function (Orch) {
  "use strict";

  Orch.LEVELS = { ALL: 0, WARNING: 1, ERROR: 2 };
  const { WARNING, ERROR } = Orch.LEVELS;

  const MAYBE = /rror|RROR|xception|WARN|arning|^Traceback|CRITICAL|FATAL|^[WEF]\d{4} |: [WEF] |Interrupt|Killed/;
  const IS_ERROR = new RegExp(
    "^[EF]\\d{4} |^\\d{4}-\\d\\d-\\d\\d [\\d:.]+: [EF] |\\b(?:ERROR|CRITICAL|FATAL)\\b|^Traceback \\(most recent call last\\)" +
    "|^(?:[\\w.]+\\.)?\\w*(?:Error|Exception|Interrupt|ExceptionGroup)(?::|$)|^Killed\\b");
  const IS_WARNING = /^W\d{4} |^\d{4}-\d\d-\d\d [\d:.]+: W |\bWARN(?:ING)?\b|\b\w*Warning\b/;
  const TRACEBACK = "Traceback (most recent call last):";
  // Only the beginning decides: a line may be 4,096 characters long.
  const DECIDES = 300;

  // The level of a line. `tracebacks` holds the tasks whose last lines belong to a traceback.
  Orch.levelOf = function (text, task, tracebacks) {
    if (tracebacks.size && tracebacks.has(task)) {
      if (text.startsWith(" ") || text === "") return ERROR;
      tracebacks.delete(task);
      if (/^[\w.]+(?::|$)/.test(text)) return ERROR;
    }
    const start = text.length > DECIDES ? text.slice(0, DECIDES) : text;
    if (!MAYBE.test(start)) return 0;
    if (start.startsWith(TRACEBACK)) tracebacks.add(task);
    return IS_ERROR.test(start) ? ERROR : IS_WARNING.test(start) ? WARNING : 0;
  };

  // As orchestrator/core/text/startup_lines.py.
  const NATIVE = /^(?:([IWEF])\d{4} [\d:.]+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: ([IWEF]) )(?:[^\s:]+\/)?([\w.]+\.(?:cc|h)):\d+\] /;
  const START_FILES = new Set(["port.cc", "cudart_stub.cc", "cpu_feature_guard.cc", "coordination_service.cc",
    "coordination_service.h", "coordination_service_agent.cc", "cuda_executor.cc", "eager_service_impl.cc",
    "generator_dataset_op.cc", "gpu_device.cc", "grpc_server_lib.cc", "profiler_session.cc", "tf_record_dataset_op.cc"]);
  const HARMLESS = new RegExp("failed call to cuInit: .*(?:UNKNOWN ERROR \\(303\\)|CUDA_ERROR_NO_DEVICE|no CUDA-capable device)" +
    "|Unable to register cu\\w+ (?:factory|plugin)|computation placer already registered" +
    "|Input of GeneratorDatasetOp::Dataset will not be optimized|oneDNN supports DT_\\w+ only on platforms with " +
    "|Ignoring error status when releasing multi-device function handle UNIMPLEMENTED: ");
  const OTHERS = ["WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "To enable the following instructions: "];

  Orch.isStartupLine = function (text) {
    const first = text.charCodeAt(0);
    // Digits, and E F I T W: other lines are none.
    if (!((first >= 48 && first <= 57) || first === 69 || first === 70 || first === 73 || first === 84 || first === 87)) {
      return false;
    }
    const native = NATIVE.exec(text);
    if (!native) return OTHERS.some((start) => text.startsWith(start));
    if ((native[1] || native[2]) === "I" && START_FILES.has(native[3])) return true;
    return HARMLESS.test(text.slice(native[0].length));
  };
})((window.Orch = window.Orch || {}));
