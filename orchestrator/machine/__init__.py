"""What this machine is and has, and whether a run can begin on it."""
