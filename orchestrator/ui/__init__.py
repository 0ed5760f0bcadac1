"""The server of `orch ui`: the page of all runs of this user, on this machine. It needs the extra `ui`."""
