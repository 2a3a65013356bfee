"""Files that are either whole or absent: atomic writes, fsync of trees, digests, and what a full disk says."""

import errno
import os
import shutil
import uuid
from collections.abc import Buffer, Iterator  # noqa
