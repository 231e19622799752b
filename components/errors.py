"""Every failure belongs to one boundary; this tree names them.

    NightshiftError
    ├── ConfigError (ValueError)      the operator can fix it; raised before the night starts
    │   └── UnknownPlugin
    ├── RecordError (ValueError)      one record is unusable; it is quarantined with the reason, the night goes on
    │   └── Misaligned                token streams of different length
    ├── RolloutError                  one trajectory failed; it is stored as a trajectory with this stop reason
    │   ├── ModelCallError            the model endpoint or engine
    │   ├── EnvError                  the environment or one of its tools
    │   └── HarnessError              the agent loop
    ├── TrainingError                 the update cannot go on; the last complete checkpoint stands
    ├── StoreError                    the database or the file store cannot be used; nothing is half-written
    │   ├── Conflict                  the row changed since it was read; read again and decide again
    │   └── Unavailable               the server went away or was too busy; nothing was written, repeating is safe
    ├── NightRunning                  another process works on this night
    ├── UnsafeStrategy                curation code refused by the sandbox
    └── PromotionRefused              the gate's criteria are not met

A message says what, which, found, expected and what to do, with values shown by `!r`.
"""


class NightshiftError(Exception):
    """The root: everything Nightshift raises on purpose."""


class ConfigError(NightshiftError, ValueError):
    """A setting is wrong; the operator can fix it before the night starts."""


class UnknownPlugin(ConfigError):
    """No plug-in has this name."""


class RecordError(NightshiftError, ValueError):
    """One record is unusable; it is quarantined with this message."""


class Misaligned(RecordError):
    """Token streams that must run in parallel differ in length."""


class RolloutError(NightshiftError):
    """One trajectory failed; it is stored with this as its stop reason."""


class ModelCallError(RolloutError):
    """The model endpoint or engine failed."""


class EnvError(RolloutError):
    """The environment or one of its tools failed."""


class HarnessError(RolloutError):
    """The agent loop failed."""


class TrainingError(NightshiftError):
    """The update cannot go on; the last complete checkpoint stands."""


class StoreError(NightshiftError):
    """The database or the file store cannot be used; nothing is half-written."""


class Conflict(StoreError):
    """The row changed since it was read."""


class Unavailable(StoreError):
    """The database went away or was too busy; nothing was written and the call may be repeated."""


class NightRunning(NightshiftError):
    """Another process works on this night."""


class UnsafeStrategy(NightshiftError):
    """Curation code was refused by the sandbox."""


class PromotionRefused(NightshiftError):
    """The gate's criteria are not met."""
