"""The entry of the server beside `orch up --ui`."""

import sys

from orchestrator.ui.background import main

sys.exit(main())
