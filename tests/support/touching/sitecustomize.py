"""Python imports this at its start where a test puts this folder on PYTHONPATH: every process of a run takes part."""

import touches

touches.take_part()
