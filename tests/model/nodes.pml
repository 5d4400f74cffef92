/* nodes.pml: the protocol of a run on two nodes, for Spin. README.md says what is modelled, and what each rule is for.
 *
 * A rule that the protocol relies on can be taken away: -DNO_... . `run` shows that everything holds with all rules,
 * and that Spin finds an error when any one of them is missing. What one program does between two looks at shared
 * memory is atomic.
 */
#define N 2 /* nodes; node 0 decides */
#define U 2 /* units; each node owns a part of each */
#ifdef EVALUATIONS /* step 1, two evaluations of it, step 2 */
#define K 4
#define STEPS 2
#define EVAL(k) ((k) == 2 || (k) == 3)
#define STEP(k) ((k) <= 1 -> (k) : ((k) <= 3 -> 1 : 2))
#else
#define K 3
#define STEPS 3
#define EVAL(k) (false)
#define STEP(k) (k)
#endif
#define NEEDS(k) (EVAL(k) -> STEP(k) : STEP(k) - 1)         /* the version that it is computed with */

/* ---- shared memory */

#define CLOSED 0
#define ACCUMULATE 1
#define APPLY 2
#define SKIP 3
#define DONE 4
#define LOGGED 5
#define WORD(k, phase) ((k) * 8 + (phase))
#define K_OF(word) ((word) / 8)
#define PHASE(word) ((word) % 8)

byte words[N * 2];    /* [node][k % 2] */
bit saves[N * 2];     /* [node][k % 2]: mt_txn.save */
byte micros[2];       /* [k % 2]: streams with a micro-batch, a bit each; written with the word, and copied with it */
byte version[N * U];  /* [node][unit] */
byte part[N * U * 2]; /* [node][unit][owner]: the step that these weights are of */
byte finished[N];     /* nodes.done[node], in the node's own control region */
byte heard;           /* nodes.done[1], in node 0's */
byte pin[N * U];      /* [node][unit] */
byte pinned[N];       /* the step of a snapshot that is pinned; 0: none is, or it is saved */
byte batch[N];        /* ring batch.I: the transaction of the message; 0: empty */
byte pieces[N * N];   /* [stream][owner]: the owner's ring grad.I, likewise */
byte squares;         /* node 0's ring squares.1, likewise */

#define TXN(node, k) words[(node) * 2 + (k) % 2]
#define SAVE(node, k) saves[(node) * 2 + (k) % 2]
#define PHASE_OF(node, k) (K_OF(TXN(node, k)) == (k) -> PHASE(TXN(node, k)) : CLOSED)
#define LARGER(a, b) ((a) > (b) -> (a) : (b))
#define NEWEST(node) LARGER(K_OF(words[(node) * 2]), K_OF(words[(node) * 2 + 1]))
#define COMMITTED(phase) ((phase) == APPLY || (phase) == SKIP)
#define PART(node, unit, owner) part[((node) * U + (unit)) * 2 + (owner)]
#define VERSION(node, unit) version[(node) * U + (unit)]
#define PIN(node, unit) pin[(node) * U + (unit)]
#define UNPINNED(node, unit) (PIN(node, unit) == 0 || PIN(node, unit) != pinned[node])
#define PIECES(stream, owner) pieces[(stream) * N + (owner)]

/* ---- between nodes */

chan control = [3] of { byte, bit }; /* TCP, SAY_TXN: word, save. In order */
/* MPI, from each node to the other: step, unit. A message is a send that waits for its receive, so what it carries is
 * read from the sender's store when it is received. It may be faster than `control`, as may what goes into rings. */
chan weights[N] = [2 * U] of { byte, byte };

/* ---- what must hold */

byte skipped;  /* the step that was skipped: it has the weights of the step before */
byte saved[N]; /* the steps that were saved, a bit each */

#define WEIGHTS(step) ((step) > 0 && (step) == skipped -> (step) - 1 : (step))
#define WHOLE(node, unit, step) (PART(node, unit, 0) == WEIGHTS(step) && PART(node, unit, 1) == WEIGHTS(step))
#define STEP_HERE(node) (PHASE_OF(node, NEWEST(node)) == ACCUMULATE -> STEP(NEWEST(node) - 1) : STEP(NEWEST(node)))

/* mt-sample and export take no slot: they trust a unit at the committed step as long as no other step is committed. */
inline readers_check(node, unit)
{
	assert(VERSION(node, unit) != STEP_HERE(node) || WHOLE(node, unit, VERSION(node, unit)))
}

/* ---- mt-step */

/* Transaction k is opened when k - 1 is committed, and k - 2, whose record it takes, is logged. */
#define RECORD_FREE(k) (PHASE(TXN(0, k)) == LOGGED || PHASE(TXN(0, k)) == CLOSED)
#define MAY_OPEN(k) (PHASE_OF(0, (k) - 1) != ACCUMULATE && RECORD_FREE(k))

inline open_next()
{
	k++;
	TXN(0, k) = WORD(k, ACCUMULATE);
	SAVE(0, k) = (k == K);
	late = false;
	if
	:: micros[k % 2] = 1
	:: micros[k % 2] = 2
	:: micros[k % 2] = 3
	fi;
	if
	:: micros[k % 2] & 1 -> assert(batch[0] == 0); batch[0] = k
	:: else
	fi;
	if
	:: micros[k % 2] & 2 -> assert(batch[1] == 0); batch[1] = k
	:: else
	fi
}

inline log_one(txn)
{
	TXN(0, txn) = WORD(txn, LOGGED)
}

active proctype step()
{
	byte k;
	bit late; /* it has seen the step in accumulate, and is going to request a snapshot */

	do
	:: atomic { k < K && MAY_OPEN(k + 1) -> open_next() }
	:: atomic { k > 1 && PHASE_OF(0, k - 1) == DONE -> log_one(k - 1) }
	:: atomic { PHASE_OF(0, k) == DONE && (k == 1 || PHASE_OF(0, k - 1) != DONE) -> log_one(k) }
#ifdef NO_TIMELY_SAVE
	:: atomic { k == K - 1 && !EVAL(k) && PHASE_OF(0, k) == ACCUMULATE && !SAVE(0, k) -> late = true }
	:: atomic { late -> SAVE(0, k) = 1; late = false }
#else
	:: atomic { k == K - 1 && !EVAL(k) && PHASE_OF(0, k) == ACCUMULATE && !SAVE(0, k) -> SAVE(0, k) = 1 }
#endif
	:: atomic { PHASE_OF(0, K) == LOGGED && PHASE_OF(0, K - 1) == LOGGED && pinned[0] == 0 -> break }
	od;
	atomic {
		assert(VERSION(0, 0) == STEPS && VERSION(0, 1) == STEPS && VERSION(1, 0) == STEPS && VERSION(1, 1) == STEPS);
		assert(WHOLE(0, 0, STEPS) && WHOLE(0, 1, STEPS) && WHOLE(1, 0, STEPS) && WHOLE(1, 1, STEPS));
		assert(saved[0] == saved[1] && (saved[0] & (1 << STEPS)));
#ifdef REACH_END
		assert(skipped != REACH_END) /* to see that it is reached */
#endif
	}
}

/* ---- mt-stream */

/* A batch of a transaction that is not known here yet stays in the ring. */
#ifdef NO_BATCH_WAIT
#define KNOWN(node, k) true
#else
#define KNOWN(node, k) ((k) <= NEWEST(node))
#endif
#ifdef NO_VERSION_WAIT
#define READABLE(node, unit, step) true
#else
#define READABLE(node, unit, step) (VERSION(node, unit) >= (step))
#endif

proctype stream(byte node)
{
	byte k, unit;

end:
	do
	:: atomic {
			batch[node] && KNOWN(node, batch[node]) ->
			k = batch[node];
			batch[node] = 0;
			if
			:: TXN(node, k) == WORD(k, ACCUMULATE)
			:: else -> k = 0; goto end /* of a transaction that is over */
			fi
		};
		do
		:: atomic { unit < U && READABLE(node, unit, NEEDS(k)) -> assert(WHOLE(node, unit, NEEDS(k))) };
			atomic { /* the end of reading: nothing has changed */
				assert(WHOLE(node, unit, NEEDS(k)));
				unit++
			}
		:: unit == U -> break
		od;
		atomic { PIECES(node, 0) == 0 -> PIECES(node, 0) = k } /* with the loss; of an evaluation, the loss alone */
		if
		:: EVAL(k)
		:: atomic { !EVAL(k) && PIECES(node, 1) == 0 -> PIECES(node, 1) = k }
		fi;
		atomic { k = 0; unit = 0 }
	od
}

/* ---- mt-optim */

/* The transaction that accumulates in a node: the newest, unless the one before is still applied */
#define BEFORE_OVER(node, k) (finished[node] >= (k) - 1 || !COMMITTED(PHASE_OF(node, (k) - 1)))
#define OPEN(node) (PHASE_OF(node, NEWEST(node)) == ACCUMULATE && BEFORE_OVER(node, NEWEST(node)))
/* Pieces of a transaction that is not known here yet stay in the ring. */
#ifdef NO_PIECES_WAIT
#define STALE(node, k) ((k) && !(OPEN(node) && (k) == NEWEST(node)))
#else
#define STALE(node, k) ((k) && (k) < NEWEST(node))
#endif

/* What an mt-optim has of the open transaction: nothing, when it is another one than before */
inline begin(node)
{
	if
	:: at == NEWEST(node)
	:: else -> at = NEWEST(node); got = 0; sums = 0
	fi
}

inline take_pieces(node, from)
{
	begin(node);
	got = got | (1 << from);
	PIECES(from, node) = 0
}

#define ALL_IN(node) (OPEN(node) && at == NEWEST(node) && got == micros[at % 2])

/* Node 0 commits when all losses, pieces and sums of squares are in, k - 1 is done, and of an evaluation, which is done
 * with its commit, node 1 knows. */
#ifdef NO_SQUARES_WAIT
#define SQUARES_IN true
#else
#define SQUARES_IN (EVAL(at) || sums)
#endif
#ifdef NO_COMMIT_AFTER_DONE
#define BEFORE_DONE(k) true
#else
#define BEFORE_DONE(k) (!COMMITTED(PHASE_OF(0, (k) - 1)))
#endif
#ifdef NO_EVAL_REPORT
#define EVAL_KNOWN true
#else
#define EVAL_KNOWN (!EVAL(at) || heard >= at)
#endif
#define MAY_COMMIT (ALL_IN(0) && SQUARES_IN && BEFORE_DONE(at) && EVAL_KNOWN)

inline commit()
{
	assert(EVAL(at) || sums); /* the norm is that of all gradients */
	assert(PHASE_OF(0, at - 1) == DONE || PHASE_OF(0, at - 1) == LOGGED);
	assert(EVAL(at) || at == 1 || (finished[0] >= at - 1 || EVAL(at - 1)) && finished[1] >= at - 1);
	if
	:: EVAL(at) -> TXN(0, at) = WORD(at, DONE)
	:: !EVAL(at) -> TXN(0, at) = WORD(at, APPLY)
	:: !EVAL(at) && STEP(at) == 2 -> TXN(0, at) = WORD(at, SKIP); skipped = STEP(at)
	fi;
	micros[at % 2] = 0;
	at = 0; got = 0; sums = 0
}

#ifdef NO_GLOBAL_DONE
#define DONE_BY_ALL(k) (finished[0] >= (k))
#else
#define DONE_BY_ALL(k) (finished[0] >= (k) && heard >= (k))
#endif
#define MAY_BE_DONE(r) (COMMITTED(PHASE(words[r])) && DONE_BY_ALL(K_OF(words[r])))

#define TAKEN(node, step) (pinned[node] == (step) || (saved[node] & (1 << (step))))

inline end_step(which)
{
	k = K_OF(words[which]);
	/* done on all nodes: a snapshot that is wanted is pinned everywhere, at this step */
	assert(!saves[which] || TAKEN(0, STEP(k)) && TAKEN(1, STEP(k)));
	words[which] = WORD(k, DONE);
	k = 0
}

#define TO_FINISH(node, r) (COMMITTED(PHASE(words[(node) * 2 + (r)])) && finished[node] < K_OF(words[(node) * 2 + (r)]))
#define OLDER(node, r) (K_OF(words[(node) * 2 + (r)]) < K_OF(words[(node) * 2 + 1 - (r)]))

#ifdef NO_PIN_AT_UPDATE
#define MAY_UPDATE(node, unit) true
#else
#define MAY_UPDATE(node, unit) UNPINNED(node, unit)
#endif
#ifdef NO_PUBLISH_WAIT
#define ALL_AT(node, step) true
#else
#define ALL_AT(node, step) (VERSION(node, 0) == (step) && VERSION(node, 1) == (step))
#endif
#ifdef NO_SAVE_WAIT
#define MAY_PIN(node) true
#else
#define MAY_PIN(node) (pinned[node] == 0)
#endif

inline pin_all(node)
{
	assert(pinned[node] == 0); /* what is pinned is not lost */
	PIN(node, 0) = STEP(k);
	PIN(node, 1) = STEP(k);
	pinned[node] = STEP(k)
}

proctype optim(byte node)
{
	byte at, got; /* the transaction that accumulates; the streams whose pieces are in */
	bit sums;     /* node 0: sums of squares are in; node 1: they are sent */
	byte k, unit; /* the transaction that is finished */
	bit keep;

end:
	do
	:: atomic { node == 0 && MAY_BE_DONE(0) -> end_step(0) }
	:: atomic { node == 0 && MAY_BE_DONE(1) -> end_step(1) }

	/* accumulate */
	:: atomic { OPEN(node) && PIECES(0, node) == NEWEST(node) -> take_pieces(node, 0) }
	:: atomic { OPEN(node) && PIECES(1, node) == NEWEST(node) -> take_pieces(node, 1) }
	:: atomic { STALE(node, PIECES(0, node)) -> PIECES(0, node) = 0 }
	:: atomic { STALE(node, PIECES(1, node)) -> PIECES(1, node) = 0 }
	:: atomic { node == 0 && OPEN(0) && squares == NEWEST(0) ->
			begin(0);
			assert(!EVAL(at) && !sums);
			squares = 0;
			sums = 1 }
	:: atomic { node == 1 && ALL_IN(1) && !EVAL(at) && !sums && squares == 0 -> squares = at; sums = 1 }
	:: atomic { node == 1 && OPEN(1) && EVAL(NEWEST(1)) && finished[1] < NEWEST(1) -> finished[1] = NEWEST(1) }
	:: atomic { node == 0 && MAY_COMMIT -> commit() }

	/* apply, or skip */
	:: atomic {
			if
			:: TO_FINISH(node, 0) && (!TO_FINISH(node, 1) || OLDER(node, 0)) -> k = K_OF(words[node * 2])
			:: TO_FINISH(node, 1) && (!TO_FINISH(node, 0) || OLDER(node, 1)) -> k = K_OF(words[node * 2 + 1])
			fi;
			keep = SAVE(node, k);
			unit = (PHASE_OF(node, k) == APPLY -> 0 : U)
		};
		do
		:: atomic { unit < U && MAY_UPDATE(node, unit) ->
				assert(PART(node, unit, node) == WEIGHTS(STEP(k) - 1));
				PART(node, unit, node) = STEP(k);
				readers_check(node, unit);
				unit++ }
		:: unit == U -> break
		od;
		ALL_AT(node, STEP(k));
#ifdef NO_PIN_BEFORE_DONE
		finished[node] = k;
#endif
		if
		:: !keep
		:: atomic { keep && MAY_PIN(node) -> pin_all(node) }
		fi;
		atomic { finished[node] = k; k = 0; unit = 0; keep = 0 }
	od
}

/* ---- mt-link */

/* Node 1: its copy of a transaction's word. What libmt's mt_run_check holds for damage must not be seen, whenever
 * somebody looks, and node 1 must have taken part in each transaction. */
inline hear()
{
	r = K_OF(word) % 2;
	if
	:: K_OF(word) == K_OF(words[2 + r]) ->
		assert(PHASE(word) > PHASE(words[2 + r]));
		assert(PHASE(words[2 + r]) != ACCUMULATE || EVAL(K_OF(word)) || COMMITTED(PHASE(word)))
	:: else ->
		assert(PHASE(word) == ACCUMULATE);
		assert(K_OF(word) == 1 || K_OF(word) == K_OF(words[2 + r]) + 2);
		assert(finished[1] >= K_OF(words[2 + r]))
	fi;
	words[2 + r] = word;
	saves[2 + r] = wish;
	assert(PHASE(words[3 - r]) == CLOSED || K_OF(words[3 - r]) + 1 == K_OF(word) && PHASE(words[3 - r]) != ACCUMULATE ||
		K_OF(word) + 1 == K_OF(words[3 - r]) && PHASE(word) != ACCUMULATE);
	r = 0
}

inline tell(which)
{
	if
	:: words[which] != known[which] -> control!words[which], saves[which]; known[which] = words[which]
	:: else
	fi
}

/* Node 0: both words as they stood at one moment, the older one first */
#ifdef NO_OLDER_FIRST
#define FIRST (K_OF(words[0]) > K_OF(words[1]) -> 0 : 1)
#else
#define FIRST (K_OF(words[0]) < K_OF(words[1]) -> 0 : 1)
#endif
#define TO_TELL ((words[0] != known[0] || words[1] != known[1]) && len(control) < 2)

#ifdef NO_WAIT_FOR_COMMIT
#define MAY_RECEIVE true
#else
#define MAY_RECEIVE (carried && received < U)
#endif
#ifdef NO_PIN_AT_RECEIVE
#define MAY_STORE(node) true
#else
#define MAY_STORE(node) UNPINNED(node, received % U)
#endif
#ifdef NO_UPDATE_WAIT
#define UPDATED(node, unit) true
#else
#define UPDATED(node, unit) (PART(node, unit, node) == carried)
#endif
#ifdef NO_OWN_PART
#define OWN_PART true
#else
#define OWN_PART (published < sent)
#endif
#ifdef NO_OTHER_PART
#define OTHER_PART(node) true
#else
#define OTHER_PART(node) (PART(node, published, 1 - node) == carried)
#endif

inline receive(node)
{
	weights[1 - node]?r, unit;
	assert(unit == received % U);
	/* what is sent is the sender's part at that step, and not overwritten before it is here */
	assert(PART(1 - node, unit, 1 - node) == r);
	assert(PART(node, unit, 1 - node) == WEIGHTS(r - 1));
	PART(node, unit, 1 - node) = PART(1 - node, unit, 1 - node);
	readers_check(node, unit);
	received++;
	r = 0;
	unit = 0
}

inline publish(node, which, to)
{
	assert(VERSION(node, which) + 1 == to);
	VERSION(node, which) = to;
	readers_check(node, which)
}

#define BEHIND(node, r) (VERSION(node, U - 1) + 1 == STEP(K_OF(words[(node) * 2 + (r)])))
#define PHASE_HERE(node, r) PHASE(words[(node) * 2 + (r)])

proctype link(byte node)
{
	byte known[2]; /* node 0: the words that node 1 knows */
	byte carried, sent, received, published; /* step of the weights that are moved; units */
	byte r, unit, word;
	bit wish;

	known[0] = WORD(0, LOGGED);
end:
	do
#ifdef NO_ONE_MOMENT
	:: node == 0 && TO_TELL -> r = 1 - NEWEST(0) % 2;
		atomic { tell(r); r = 1 - r };
		atomic { tell(r); r = 0 }
#else
	:: atomic { node == 0 && TO_TELL -> r = FIRST; tell(r); r = 1 - r; tell(r); r = 0 }
#endif
	:: atomic { node == 1 && nempty(control) -> control?word, wish; hear(); word = 0; wish = 0 }
#ifdef NO_ORDER
	:: atomic { node == 1 && len(control) > 1 -> control?word, wish; control!word, wish; word = 0; wish = 0 }
#endif
	:: atomic { node == 1 && heard != finished[1] -> heard = finished[1] } /* SAY_DONE */

	/* a step that is committed here, and whose weights are not here */
	:: atomic { !carried && PHASE_HERE(node, 0) == APPLY && BEHIND(node, 0) -> carried = STEP(K_OF(words[node * 2])) }
	:: atomic { !carried && PHASE_HERE(node, 1) == APPLY && BEHIND(node, 1) ->
			carried = STEP(K_OF(words[node * 2 + 1])) }
	:: atomic { !carried && PHASE_HERE(node, 0) == SKIP && BEHIND(node, 0) ->
			r = STEP(K_OF(words[node * 2]));
			publish(node, 0, r);
			publish(node, 1, r);
			r = 0 }
	:: atomic { !carried && PHASE_HERE(node, 1) == SKIP && BEHIND(node, 1) ->
			r = STEP(K_OF(words[node * 2 + 1]));
			publish(node, 0, r);
			publish(node, 1, r);
			r = 0 }
	:: atomic { carried && sent < U && UPDATED(node, sent) -> weights[node]!carried, sent; sent++ }
	:: atomic { MAY_RECEIVE && nempty(weights[1 - node]) && MAY_STORE(node) -> receive(node) }
	:: atomic { carried && published < U && OWN_PART && OTHER_PART(node) ->
			publish(node, published, carried);
			published++ }
	:: atomic { carried && published == U && sent == U && empty(weights[node]) ->
			carried = 0; sent = 0; published = 0; received = received - U }
	od
}

/* ---- mt-ckpt */

/* Each node saves what it owns, and node 0 the model, of which it reads all weights. Node 0's save is complete when all
 * nodes' are. */
#ifdef NO_SAVE_REPORT
#define SAVED_ELSEWHERE(step) true
#else
#define SAVED_ELSEWHERE(step) (saved[1] & (1 << (step)))
#endif

proctype ckpt(byte node)
{
	byte unit;

end:
	do
	:: atomic { pinned[node] && unit < U ->
			assert(PIN(node, unit) == pinned[node]);
			assert(PART(node, unit, node) == WEIGHTS(pinned[node]));
			assert(node == 1 || WHOLE(node, unit, pinned[node]));
			PIN(node, unit) = 0;
			unit++ }
	:: atomic { unit == U && (node == 1 || SAVED_ELSEWHERE(pinned[node])) ->
			saved[node] = saved[node] | (1 << pinned[node]);
			pinned[node] = 0;
			unit = 0 }
	od
}

init
{
	atomic {
		words[0] = WORD(0, LOGGED);
		words[2] = WORD(0, LOGGED);
		run stream(0);
		run stream(1);
		run optim(0);
		run optim(1);
		run link(0);
		run link(1);
		run ckpt(0);
		run ckpt(1)
	}
}
