"""All crash campaigns: real processes, killed again and again, and what they left is counted.

    python -m tests.acceptance --kills 200
    python -m tests.acceptance --kills 500 --only outbox --seed 7

Kills follow the seed, but processes run as the machine lets them: a seed repeats a plan, not a run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.acceptance import broker_account, inbox_crash
from tests.acceptance.account import Account
from tests.acceptance.campaign import Campaign
from tests.acceptance.copier_crash import CopierCampaign, OutboxCopierCampaign
from tests.acceptance.outbox_crash import OutboxCampaign
from tests.acceptance.progress import Progress

#: A campaign with so many kills and this seed.
Run = Callable[[int, int, bool], Account]
