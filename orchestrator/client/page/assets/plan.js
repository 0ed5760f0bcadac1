// The plan: command, versions, options, cluster and what each task was started with.
(function (Orch) {
  "use strict";

  const { el } = Orch;
  const pairs = (title, values) => {
    const entries = Object.entries(values || {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return entries.length ? [el("h2", null, title), el("dl.pairs", null, entries.map(([name, value]) => [
      el("dt", null, name), el("dd", null, Array.isArray(value) ? value.join(", ") : value)]))] : null;
  };
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`);

  Orch.planTab = function (doc) {
    const { run } = doc, plan = doc.plan || {};
    const configs = Object.entries(plan.tf_config || {});
    return el("div.text-page", null,
      el("h2", null, "Command"), Orch.block(plan.command || run.command || "", "Command"),
      pairs("Run", { run: run.id, directory: run.directory, files: run.dir, checkpoints: run.checkpoint_dir, python: plan.python,
        strategy: plan.strategy }),
      pairs("Versions", plan.versions),
      pairs("Options", plan.options),
      pairs("Cluster", plan.cluster),
      pairs("Devices", plan.devices),
      (plan.env_names || []).length ? [el("h2", null, "Environment variables set for the tasks"), el("p.names", null, plan.env_names.join("  "))] : null,
      (doc.hosts || []).length ? [el("h2", null, "Hosts"), Orch.table(["Host", "Address", "State", "Cores", "Memory", "GPUs", ""],
        doc.hosts.map((host) => [host.host, host.address, host.state, Orch.count(host.cores), Orch.bytes(host.memory_bytes), (host.gpus || []).join(", ") || "–",
          host.reason || ""]), "Hosts")] : null,
      (plan.tasks || []).length ? [el("h2", null, "Tasks"), Orch.table(["Task", "Command", "Directory", "Host"],
        plan.tasks.map((task) => [task.task, (task.argv || []).map(quoted).join(" "), task.cwd || "", task.host || ""]), "Commands of the tasks")] : null,
      configs.length ? [el("h2", null, "TF_CONFIG"), configs.map(([task, config]) => el("details", null, el("summary", null, task),
        Orch.block(JSON.stringify(config, null, 2), `TF_CONFIG of ${task}`)))] : null);
  };
})((window.Orch = window.Orch || {}));
