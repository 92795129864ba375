"""How a succeeded record is found by its key, for as long as its job's `dedupe_for` protects it (E5)."""

from __future__ import annotations

from rowlock.store.migrations.step import Step

_INDEX = (
    "CREATE INDEX rowlock_job_done_key ON rowlock_job (job, key, created_at)"
    " WHERE state = 'succeeded' AND key IS NOT NULL"
)

# In place of a partial index, as `active_key`: NULL for every other record.
MYSQL = {
    "rowlock_job.done_key": """
ALTER TABLE rowlock_job ADD COLUMN done_key varbinary(2049) GENERATED ALWAYS AS
  (if(state = 'succeeded' AND `key` IS NOT NULL,
      concat(cast(job AS binary), x'00', cast(`key` AS binary)), NULL)) VIRTUAL""",
    "rowlock_job_done_key": "CREATE INDEX rowlock_job_done_key ON rowlock_job (done_key, created_at)",
}

STEP = Step(
    number=7,
    oldest=1,
    postgresql={"rowlock_job_done_key": _INDEX},
    mysql=MYSQL,
    sqlite={"rowlock_job_done_key": _INDEX},
)
