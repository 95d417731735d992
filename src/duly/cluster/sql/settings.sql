-- In front of every message, for its transaction alone: behind a pooler there is no session to set up. The default
-- of the server for synchronous_commit is respected unless it would lose what we call durable.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SELECT set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                                             ELSE current_setting('synchronous_commit') END, true),
       set_config('statement_timeout', %(patience_ms)s, true),
       set_config('idle_in_transaction_session_timeout', %(thinking_ms)s, true),
       set_config('jit', 'off', true);
