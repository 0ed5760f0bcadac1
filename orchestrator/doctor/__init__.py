"""`orch doctor`: facts are gathered, judged without looking again, and reported. Nothing is started or changed."""
