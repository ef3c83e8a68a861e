-- What may be asked of the records of many nights (helpers/batch/history.py): each question begins with a line "-- NAME: what it
-- answers". LOST stands for the states of a run that was lost.

-- states: how the runs of each night ended
SELECT batch, count(*) AS runs, count(*) FILTER (state = 'answered') AS answered, count(*) FILTER (state = 'failed') AS failed,
       count(*) FILTER (state IN LOST) AS lost, count(*) FILTER (state = 'skipped') AS skipped,
       count(*) FILTER (state IN ('planned', 'started')) AS "no end", round(sum(seconds) / 60, 1) AS minutes
FROM runs GROUP BY batch ORDER BY min(started_at) NULLS LAST, batch

-- slowest: the notebooks that take longest
SELECT notebook, count(*) AS runs, round(median(seconds), 1) AS median_s, round(quantile_cont(seconds, 0.9), 1) AS p90_s,
       max(seconds) AS longest_s, arg_max(batch, seconds) AS longest_in
FROM runs WHERE seconds IS NOT NULL AND state <> 'skipped' GROUP BY notebook ORDER BY median_s DESC, notebook

-- died: runs that were lost, and where
SELECT notebook, box, node, state, signal, count(*) AS times, min(batch) AS first, max(batch) AS last,
       arg_max(cause, batch) AS "why, the last time"
FROM runs WHERE state IN LOST GROUP BY ALL ORDER BY times DESC, notebook, box, node, state, signal

-- verdicts: verdicts of the same run that changed
SELECT notebook, box, parameters, before_batch, before, batch, after FROM (
  SELECT *, verdict || ' (' || confidence || ')' AS after,
         lag(after) OVER same_run AS before, lag(batch) OVER same_run AS before_batch
  FROM runs WHERE verdict IS NOT NULL WINDOW same_run AS (PARTITION BY same ORDER BY started_at, batch, run_id))
WHERE before <> after ORDER BY batch, notebook, box

-- times: how long the same run took over the nights
SELECT notebook, box, parameters, count(*) AS runs, first(seconds ORDER BY started_at, batch) AS first_s,
       last(seconds ORDER BY started_at, batch) AS last_s, min(seconds) AS least_s, max(seconds) AS most_s
FROM runs WHERE state = 'answered' GROUP BY same, notebook, box, parameters HAVING count(*) > 1
ORDER BY last_s / nullif(first_s, 0) DESC NULLS LAST, notebook, box

-- peaks: how the figures in the verdict of the same run moved
SELECT notebook, box, reading, source, count(*) AS runs, first(bytes ORDER BY started_at, batch) AS first_bytes,
       last(bytes ORDER BY started_at, batch) AS last_bytes, min(bytes) AS least_bytes, max(bytes) AS peak_bytes
FROM readings GROUP BY same, notebook, box, reading, source HAVING count(*) > 1
ORDER BY abs(last_bytes - first_bytes) DESC, notebook, box, reading, source
