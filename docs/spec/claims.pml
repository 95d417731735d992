/*
 * Row claims: why a task runs once, on one node, when it is due.
 *
 * Nodes share a table. A node claims the row of a due task, calls the body after the commit, and writes the end.
 * Each d_step is one statement of the database or one step of a node. SPIN tries every order of the steps.
 * docs/spec/claims.md is the guide: how to run it, what each broken variant shows, what the model leaves out.
 *
 * THE INVARIANT. A body acts only while its node trusts its lease. A row leaves a node only after the trust of
 * that node is over, or in a transaction of that node itself.
 */
#ifndef NODES
#define NODES 3
#endif
#ifndef TASKS
#define TASKS 2
#endif
#ifndef DUES                /* per task */
#define DUES 1
#endif
#ifndef LOST                /* 1: one answer is lost; its statement was executed, will be executed, or never is */
#define LOST 0
#endif
#ifndef FAULT               /* 1: node 1 is stopped (SIGSTOP), or sends no heartbeats, or a body blocks its loop. */
#define FAULT 0             /*    All nodes are equal at the start, so it does not matter which node is hit. */
#endif
#ifndef FORGET              /* 1: a standby takes over that lacks the latest commits */
#define FORGET 0
#endif
#ifndef ROUNDS              /* 1: healthy nodes send heartbeats in the instant of the tick. 0: at any time */
#define ROUNDS 0
#endif

/* Broken variants: -DBROKEN=NAME removes one rule. Each must be caught. */
#define broken(variant) (BROKEN == variant)
#ifndef BROKEN
#define BROKEN 0
#endif
#define NO_TOKEN 1                  /* an end is written by row alone */
#define WALL_CLOCK_LEASE 2          /* stillness is a difference of wall-clock times, and the clock steps */
#define FENCE_WITHOUT_COUNTER 3     /* the fence does not name the counter value that was seen */
#define CALL_BEFORE_COMMIT 4        /* the body is called while the claim is on the way */
#define HEARTBEAT_ON_LOOP 5         /* a body that blocks the loop blocks the heartbeats */
#define NO_RESTORE 6                /* a node whose number is missing does not write its rows again */
#define NO_TRUST_CHECK 7            /* no check between the commit of the claim and the call */
#define NO_CHECK_ON_RESUME 8        /* no check before a body goes on after SIGCONT */
#define OLD_ANSWER 9                /* the loop uses an answer that was given to the old id */
#define NO_NEW_ID 10                /* a node keeps its id after a lost answer */
#define NO_SWEEP 11                 /* rows claimed by a fenced id stay there */
#define FENCE_LEAVES_ROWS 12        /* the fence only marks the node; its rows wait for the sweep */
#define TRUST_LIKE_LEASE 13         /* trust is as long as the lease */
#define LOOK_TIMED_BEFORE_SEND 14   /* stillness starts when the look is sent, not when its answer is here */
#define CONTINUE_AT_ONCE 15         /* on a new server, a node whose number is there claims at once */
#define RESTORE_ONLY_RUNNING 16     /* ends that the server forgot are not restored */
#define LATE_RESTORE 17             /* rows are restored also after claims have opened */
#define END_UNCHECKED 18            /* an end is accepted from a node that has not checked the new server */

/* TIME. One tick is one heartbeat period. A heartbeat takes no time in the model, and that is the worst case: a node
 * counts trust from BEFORE it sends the heartbeat, so a slow heartbeat gives less trust; an observer counts stillness
 * from AFTER it received the first look with that value, so a slow look fences later. All other statements take any
 * time. The tick between TRUST and LEASE pays for the drift of clocks and for the time that a cancelled body needs. */
#define LEASE 3
#define TRUST (LEASE - 1 + broken(TRUST_LIKE_LEASE))

/* THE TABLE */
#define NOBODY 0                    /* ids of nodes are 1..NODES */
#define OLD (NODES + 1)             /* every id that a node has given up; all of them are fenced */
typedef Row { byte by; byte token; byte done }  /* run_by; token; how many dues have ended */
Row row[TASKS], snap[TASKS];        /* snap: what the standby has */
bool fenced[NODES + 2], snap_fenced[NODES + 2];
byte closed;                        /* new server: ticks until claims open, from the first node that reached it */

/* WHAT A NODE HAS IN MEMORY */
#define IDLE 0
#define GOT 1                       /* its claim was executed; it has not looked at the answer */
#define RUN 2                       /* the body is between call and return */
#define FIN 3                       /* the body has returned, the end is sent */
typedef Run {
    byte state;
    byte token; byte done;          /* the row as this node knows it. A run is for the due after `done` */
    byte new_token; byte new_done   /* in the answer that it has not looked at */
}
typedef Node { Run task[TASKS]; byte trust; bool doubt; bool checked }
Node node[NODES + 1];               /* doubt: it has lost an answer. checked: it has checked this server */
#define my(p, t) node[p].task[t]
#define runs(p, t) (my(p, t).state == RUN || my(p, t).state == FIN)
#define mine(p, t) (row[t].by == p && row[t].token == my(p, t).token)
#define no_body(p) (my(p, 0).state != RUN && my(p, TASKS - 1).state != RUN)

/* A counter has no bound, and only one comparison is made with it. moved: the heartbeat counter of n is not the value
 * that o saw last. ahead: the sequence number on the node's own row is higher than the one in the snapshot. */
typedef Look { bool moved[NODES + 1]; byte still[NODES + 1] }   /* still: ticks without a change */
Look look[NODES + 1];
bool ahead[NODES + 1];

/* FAULTS */
#define STOPPED 1
#define SILENT 2
#define BLOCKED 3
byte mode;                          /* of node 1; 0 is well */
bool forever, fault_used, lost_used;
byte late_by, late_task;            /* a claim that nobody waits for and that is not executed yet */
#define FIRST 0
#define LAGGING 1                   /* the standby has stopped to follow: it has snap */
#define SECOND 2                    /* the standby has taken over */
byte server;
#define wrote(p) ahead[p] = (ahead[p] || server == LAGGING)
#define needs_memory (server == LAGGING || closed > 0)  /* what came before the snapshot cannot be forgotten */
#define stopped(p) (p == 1 && mode == STOPPED)
#define blocked(p) (p == 1 && mode == BLOCKED)
#define silent(p) (p == 1 && (mode == SILENT || broken(HEARTBEAT_ON_LOOP) && mode == BLOCKED))
hidden byte i, j;

/* SAFETY. (1) Bodies of one task never act at once. A stopped body does not act. (2) One start per due: no start for
 * a due whose body has returned on a node that is still able to write that. (3) Only the owner writes an end. */
byte finished[TASKS];
inline check_start(p, t) { body_is_alone(p, t); assert(my(p, t).done >= finished[t]) }
inline body_is_alone(p, t) { for (i : 1 .. NODES) { assert(i == p || my(i, t).state != RUN || stopped(i)) } skip }
inline write_end(p, t) { assert(row[t].by == p && !fenced[p]); row[t].by = NOBODY; row[t].done++; wrote(p) }

/* CLAIM, CALL, END. A statement that was sent before is executed also if its node is stopped, fenced or not trusted. */
#define claimable(p, t) (my(p, t).state == IDLE && node[p].checked && row[t].by == NOBODY && row[t].done < DUES && \
    (closed == 0 || broken(CONTINUE_AT_ONCE) && !ahead[p]))
#define loop_runs(p) (!stopped(p) && !blocked(p))
#define end_matches(p, t) (row[t].by != NOBODY && (row[t].token == my(p, t).token || broken(NO_TOKEN)))
inline become_idle(p, t) {
    my(p, t).state = IDLE; my(p, t).new_token = 0; my(p, t).new_done = 0;
    if :: needs_memory -> skip :: else -> my(p, t).token = 0; my(p, t).done = 0 fi
}
inline lose_answer(p) { lost_used = true; node[p].doubt = !broken(NO_NEW_ID) }

proctype Loop(byte p; byte t) {     /* the part of the event loop of node p that is about task t */
    do
    :: d_step { claimable(p, t) && !blocked(p) && !node[p].doubt -> printf("node %d claims task %d\n", p, t);
        row[t].by = p; row[t].token++; wrote(p);
        my(p, t).state = GOT; my(p, t).new_token = row[t].token; my(p, t).new_done = row[t].done }
    :: d_step { my(p, t).state == GOT && loop_runs(p) && (node[p].trust > 0 || broken(NO_TRUST_CHECK)) ->
        printf("node %d calls task %d\n", p, t);
        my(p, t).token = my(p, t).new_token; my(p, t).new_token = 0;
        my(p, t).done = my(p, t).new_done; my(p, t).new_done = 0;
        my(p, t).state = RUN; check_start(p, t) }
    :: d_step { broken(CALL_BEFORE_COMMIT) && claimable(p, t) && loop_runs(p) && node[p].trust > 0 ->
        printf("node %d calls task %d before the commit\n", p, t);
        my(p, t).token = row[t].token + 1; my(p, t).done = row[t].done;
        my(p, t).state = RUN; check_start(p, t) }
    :: d_step { my(p, t).state == RUN && loop_runs(p) -> printf("task %d returns on node %d\n", t, p);
        my(p, t).state = FIN; if :: node[p].trust > 0 -> finished[t] = my(p, t).done + 1 :: else fi }
    :: d_step { my(p, t).state == RUN && loop_runs(p) && node[p].trust == 0 ->
        printf("node %d cancels task %d\n", p, t); become_idle(p, t) }
    :: d_step { my(p, t).state == FIN && (node[p].checked || broken(END_UNCHECKED)) && end_matches(p, t) ->
        printf("node %d writes the end of task %d\n", p, t);
        write_end(p, t); my(p, t).done++; become_idle(p, t) }
    :: d_step { my(p, t).state == FIN && node[p].checked && !end_matches(p, t) && !node[p].doubt ->
        printf("node %d: task %d was taken away\n", p, t); become_idle(p, t) }
    /* the lost answer: to a claim that was executed, to one that is late, to an end that was not executed or was */
    :: d_step { LOST && !lost_used && my(p, t).state == GOT -> printf("node %d: answer to a claim lost\n", p);
        become_idle(p, t); lose_answer(p) }
    :: d_step { LOST && !lost_used && claimable(p, t) -> printf("node %d: late claim of task %d\n", p, t);
        late_by = p; late_task = t; lose_answer(p) }
    :: d_step { LOST && !lost_used && my(p, t).state == FIN -> printf("node %d: end lost\n", p); lose_answer(p) }
    :: d_step { LOST && !lost_used && my(p, t).state == FIN && node[p].checked && end_matches(p, t) ->
        printf("node %d: answer to an end lost\n", p); write_end(p, t); lose_answer(p) }
    od
}

/* HEARTBEAT, NEW ID, RESTORE: in a thread of their own. A blocked loop stops none of the three. */
inline heartbeat(p) {               /* one statement: raise my counter, look at the others, sweep */
    wrote(p);
    for (i : 1 .. NODES) {
        look[i].moved[p] = (i != p);
        if :: !broken(FENCE_WITHOUT_COUNTER) -> look[i].still[p] = 0 :: else fi;
        if :: look[p].moved[i] -> look[p].moved[i] = false; look[p].still[i] = broken(LOOK_TIMED_BEFORE_SEND) :: else fi
    }
    for (i : 0 .. TASKS - 1) {
        if
        :: !broken(NO_SWEEP) && row[i].by != NOBODY && (row[i].by == OLD || fenced[row[i].by]) -> row[i].by = NOBODY
        :: else
        fi
    }
    skip
}
inline come_back(p) {               /* one transaction: fence my old id, write ends, keep my runs, release the rest */
    for (i : 0 .. TASKS - 1) {
        if
        :: my(p, i).state == FIN && mine(p, i) -> row[i].done++; my(p, i).done++; become_idle(p, i)
        :: my(p, i).state == FIN && !mine(p, i) ->  /* was it written, and only the answer is lost? */
            if :: row[i].done > my(p, i).done -> my(p, i).done++ :: else fi;
            become_idle(p, i)
        :: my(p, i).state == GOT && !broken(OLD_ANSWER) -> become_idle(p, i)
        :: else
        fi;
        if :: row[i].by == p && my(p, i).state != RUN -> row[i].by = NOBODY :: else fi
    }
    if :: late_by == p -> late_by = OLD :: else fi;
    fenced[p] = false; node[p].doubt = false; node[p].trust = TRUST;
    for (i : 1 .. NODES) { look[p].moved[i] = (i != p); look[p].still[i] = 0 }
    heartbeat(p)
}
inline restore(p) {                 /* write the rows as I know them, where I know more than the server */
    for (i : 0 .. TASKS - 1) {
        if
        :: !broken(NO_RESTORE) && (closed > 0 || broken(LATE_RESTORE)) &&
            (runs(p, i) || !broken(RESTORE_ONLY_RUNNING)) && (my(p, i).token > row[i].token || mine(p, i)) ->
            row[i].token = my(p, i).token; row[i].done = my(p, i).done;
            if :: runs(p, i) -> row[i].by = p :: else -> row[i].by = NOBODY fi
        :: else
        fi
    }
    skip
}
#define reaches(p) (!stopped(p) && !silent(p))
#define well(p) (node[p].checked && !node[p].doubt && !fenced[p] && node[p].trust > 0)
#define cancelled(p) (node[p].trust > 0 || no_body(p))  /* no trust, no body */

proctype Heartbeat(byte p) {
    do
    :: d_step { reaches(p) && well(p) && node[p].trust < TRUST -> printf("node %d sends a heartbeat\n", p);
        heartbeat(p); node[p].trust = TRUST }
    :: d_step { LOST && !lost_used && reaches(p) && well(p) && (node[p].trust < TRUST || ROUNDS) ->
        printf("node %d: answer to a heartbeat lost\n", p); heartbeat(p); lose_answer(p) }
    :: d_step { reaches(p) && node[p].checked && !well(p) && cancelled(p) -> printf("node %d comes back\n", p);
        come_back(p) }
    :: d_step { reaches(p) && !node[p].checked && cancelled(p) -> printf("node %d checks the new server\n", p);
        node[p].checked = true;
        if :: ahead[p] -> restore(p); come_back(p) :: else fi }
    od
}

/* FENCE: one statement. It names the counter value and takes the rows with the node. */
#define can_fence(o, n) (o != n && !stopped(o) && node[o].checked && !fenced[n] && look[o].still[n] == LEASE && \
    (!look[o].moved[n] || broken(FENCE_WITHOUT_COUNTER)))
inline fence(o, n) {
    printf("node %d fences node %d\n", o, n); fenced[n] = true;
    for (i : 0 .. TASKS - 1) { if :: row[i].by == n && !broken(FENCE_LEAVES_ROWS) -> row[i].by = NOBODY :: else fi }
    skip
}
proctype Observer(byte o) {
    do
    :: d_step { can_fence(o, 1) -> fence(o, 1) }
    :: d_step { can_fence(o, 2) -> fence(o, 2) }
    :: d_step { can_fence(o, NODES) -> fence(o, NODES) }
    od
}

/* TIME PASSES, but not before three things: a node that can send heartbeats has sent one; a node whose trust is over
 * has cancelled its bodies; the heartbeat thread of a blocked loop has reached the server before its trust is over. */
#define in_time(p) (stopped(p) || (cancelled(p) || blocked(p)) && (node[p].trust > 1 || !blocked(p) || silent(p)) && \
    (node[p].trust == TRUST || node[p].trust == 0 || silent(p) || !node[p].checked || node[p].doubt))
inline beat_in_round(p) {
    if :: ROUNDS && reaches(p) && well(p) -> heartbeat(p); node[p].trust = TRUST :: else fi
}
proctype Tick() {
    do
    :: d_step { in_time(1) && in_time(2) && in_time(NODES) -> printf("tick\n");
        for (i : 1 .. NODES) {
            for (j : 1 .. NODES) {
                if
                :: i != j && look[i].still[j] < LEASE && (!look[i].moved[j] || broken(FENCE_WITHOUT_COUNTER)) ->
                    look[i].still[j]++
                :: else
                fi
            }
            for (j : 0 .. TASKS - 1) {  /* the end was not written in time: the run may count as interrupted */
                if
                :: node[i].trust == 1 && my(i, j).state == FIN && finished[j] > row[j].done -> finished[j] = row[j].done
                :: else
                fi
            }
            if :: node[i].trust > 0 -> node[i].trust-- :: else fi
        }
        if :: closed > 0 && (node[1].checked || node[2].checked || node[NODES].checked) -> closed-- :: else fi;
        for (i : 1 .. NODES) {
            for (j : 0 .. TASKS - 1) {  /* claims open, and only a node that was away for a lease knows this end */
                if
                :: closed == 0 && !node[i].checked && finished[j] > row[j].done &&
                    my(i, j).done + (my(i, j).state == FIN) > row[j].done -> finished[j] = row[j].done
                :: else
                fi;
                if :: my(i, j).state == IDLE && !broken(LATE_RESTORE) -> become_idle(i, j) :: else fi
            }
        }
        beat_in_round(1); beat_in_round(2); beat_in_round(NODES) }
    od
}

proctype Environment() {
    do
    :: d_step { FAULT && !fault_used -> printf("node 1 is stopped\n"); fault_used = true; mode = STOPPED }
    :: d_step { FAULT && !fault_used -> printf("node 1 is silent\n"); fault_used = true; mode = SILENT }
    :: d_step { FAULT && !fault_used && !no_body(1) && node[1].trust > 0 -> printf("node 1 is blocked\n");
        fault_used = true; mode = BLOCKED }
    :: d_step { mode != 0 && !forever -> printf("node 1 goes on\n");
        for (j : 0 .. TASKS - 1) {      /* after SIGCONT the loop checks the trust before any body goes on */
            if
            :: my(1, j).state != RUN || mode != STOPPED -> skip
            :: else -> if :: node[1].trust > 0 || broken(NO_CHECK_ON_RESUME) -> body_is_alone(1, j)
                          :: else -> become_idle(1, j) fi
            fi
        }
        mode = 0 }
#ifdef LIVENESS /* under fairness the environment has to say that a fault does not come or does not end */
    :: d_step { !fault_used -> fault_used = true }
    :: d_step { (mode == STOPPED || mode == SILENT) && !forever -> printf("node 1 is dead\n"); forever = true }
#endif
    :: d_step { late_by != NOBODY && closed == 0 && row[late_task].by == NOBODY && row[late_task].done < DUES ->
        printf("the late claim is executed\n");
        row[late_task].by = late_by; row[late_task].token++; late_by = NOBODY; late_task = 0 }
    :: d_step { late_by != NOBODY -> late_by = NOBODY; late_task = 0 }
    :: d_step { FORGET && server == FIRST -> printf("the standby stops to follow\n"); server = LAGGING;
        for (i : 0 .. TASKS - 1) { snap[i].by = row[i].by; snap[i].token = row[i].token; snap[i].done = row[i].done }
        for (i : 1 .. NODES) { snap_fenced[i] = fenced[i] }
        skip }
    :: d_step { server == LAGGING -> printf("the standby takes over\n"); server = SECOND;
        closed = LEASE; late_by = NOBODY; late_task = 0;
        for (i : 0 .. TASKS - 1) {
            row[i].by = snap[i].by; row[i].token = snap[i].token; row[i].done = snap[i].done;
            snap[i].by = 0; snap[i].token = 0; snap[i].done = 0
        }
        for (i : 1 .. NODES) {
            fenced[i] = snap_fenced[i]; snap_fenced[i] = false; node[i].checked = false;
            for (j : 1 .. NODES) { look[i].moved[j] = (i != j); look[i].still[j] = 0 }
        }
        skip }
    :: d_step { broken(WALL_CLOCK_LEASE) && !fault_used -> printf("the clock steps forward\n"); fault_used = true;
        for (i : 1 .. NODES) { for (j : 1 .. NODES) { look[i].moved[j] = false; look[i].still[j] = LEASE } }
        skip }
    od
}

init {
    d_step {
        for (i : 1 .. NODES) {
            node[i].trust = TRUST; node[i].checked = true;
            for (j : 1 .. NODES) { look[i].moved[j] = (i != j) }
        }
        skip
    }
    atomic {
        for (i : 1 .. NODES) {
            for (j : 0 .. TASKS - 1) { run Loop(i, j) }
            run Heartbeat(i); run Observer(i)
        }
        run Tick(); run Environment()
    }
}

#ifdef LIVENESS /* every due is answered while a node lives; checked under weak fairness */
ltl answered { <> (row[0].done == DUES && row[TASKS - 1].done == DUES) }
#endif
