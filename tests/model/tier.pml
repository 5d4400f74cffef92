/* tier.pml: lo, m and v in files (mt-store create --tier), for Spin: mt-tier reads tiles into slots and writes them
 * back, mt-optim updates them there, mt-ckpt links their files. README.md says what is modelled, and what each rule is
 * for. A rule can be taken away: -DNO_... . What a killed process leaves is in shared memory, in files, and in reads
 * and writes that the kernel has not ended. */
#if defined(LINKS)  /* steps 1 and 2 are saved */
#define T 2         /* tiles of a pass */
#define S 2         /* slots */
#define STEPS 3
#define PARTITIONS 1
#define SAVE(t) ((t) < STEPS)
#elif defined(JOINED) /* step 1 is saved, and there are two partitions */
#define T 2
#define S 2
#define STEPS 2
#define PARTITIONS 2
#define SAVE(t) ((t) == 1)
#else
#ifdef NO_FEW_SLOTS
#define T 3
#define S 4
#else
#define T 4
#define S 3
#endif
#define STEPS 2
#define PARTITIONS 2
#define SAVE(t) false
#endif
#ifndef KILLS
#define KILLS 2
#endif

#define U 2                      /* units; the last tile of a pass is unit 1's */
#define UNIT(i) ((i) == T - 1)
#define END_OF(unit) ((unit) == 0 -> T - 1 : T)
#define ALL (T * STEPS)          /* tiles that are ever updated; their number is q */
#define TILE(q) ((q) % T)
#define STEP(q) ((q) / T + 1)    /* that q is updated to */
#define HALVES 2                 /* of a tile: what each partition has of it, and what I/O moves at once */
#define WHAT(i, t) ((i) * 8 + (t)) /* half of tile i at step t */
#define TORN 255
#define NONE 255
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* ---- shared memory */

byte loaded, updated, written;
byte slot[S * HALVES];      /* what lies there */
byte stands[HALVES];        /* of a partition: the q that it was in last, + 1; 0: none */
byte journal[HALVES];       /* what its half was before */
byte applied;               /* --grad none: tiles whose pieces are updated (in mt a word of each unit) */
byte committed, done;       /* steps */
byte version[U];
bit pin[U];
byte pinned;                /* the step of the snapshot; 0: none */

#define SLOT(q, h) slot[(q) % S * HALVES + (h)]

/* ---- files: F inodes for each tile. One has the tile's name, one may have NAME.new, two checkpoints have links */

#define F 4
byte file[T * F * HALVES];
byte name[T], new[T], links[2 * T];
bit next;                   /* checkpoint that is made next; the other one is sealed */

#define FILE(i, inode, h) file[((i) * F + (inode)) * HALVES + (h)]
#define LINK(c, i) links[(c) * T + (i)]
#define LINKED(i, inode) (LINK(0, i) == (inode) || LINK(1, i) == (inode))
#define FREE(i, inode) (name[i] != (inode) && new[i] != (inode) && !LINKED(i, inode))

/* ---- reads and writes that the kernel has: one a slot, and those that a dead mt-tier left behind */

#define READ 1
#define WRITE 2
byte op[2 * S], left[2 * S], of_tile[2 * S], inode[2 * S]; /* left: halves that are not there yet, a bit each */

#define EACH (1 << HALVES) - 1
#define AT(q) ((q) % S)

/* ---- who lives */

bit tier_lives = 1, optim_lives = 1, ckpt_lives = 1;
byte kills;
bit lost, dirty;            /* a write that the drive acknowledged was lost; mt-tier saw that */

/* ---- the kernel, for one slot */

inline move(h)
{
	if
	:: op[r] == READ -> slot[s * HALVES + h] = FILE(of_tile[r], inode[r], h)
	:: else ->
		assert(!LINKED(of_tile[r], inode[r])); /* what a checkpoint has is not written */
		assert(slot[s * HALVES + h] / 8 == of_tile[r]);
		FILE(of_tile[r], inode[r], h) = slot[s * HALVES + h]
	fi;
	left[r] = left[r] & ~(1 << h)
}

proctype kernel(byte s; byte r)
{
end:
	do
	:: atomic { left[r] & 1 -> move(0) }
	:: atomic { left[r] & 2 -> move(1) }
#ifdef LOST
	:: atomic { op[r] == WRITE && left[r] == EACH && !lost -> left[r] = 0; lost = true }
#endif
	od
}

/* ---- mt-tier */

byte asked, begun;          /* its own: reads up to `asked` and writes up to `begun` have been started */
#ifdef NO_LATE_LOOK
bit looked[T];
#endif

#ifdef NO_READ_BOUND
#define MAY_READ (asked <= written + S)
#else
#define MAY_READ (asked < written + S)
#endif
#ifdef NO_WRITE_BOUND
#define MAY_WRITE (begun < loaded)
#else
#define MAY_WRITE (begun < updated)
#endif
#ifdef NO_READ_WHOLE
#define WHOLE_READ(q) true
#else
#define WHOLE_READ(q) (left[AT(q)] == 0)
#endif
#ifdef NO_WRITE_WHOLE
#define WHOLE_WRITE(q) true
#else
#define WHOLE_WRITE(q) (left[AT(q)] == 0)
#endif
/* A new file takes the tile's name before its write counts. */
#ifdef NO_RENAME_FIRST
#define RENAMED(q) true
#define TO_RENAME(q) (new[TILE(q)] != NONE && left[AT(q)] == 0)
#else
#define RENAMED(q) (new[TILE(q)] == NONE)
#define TO_RENAME(q) (new[TILE(q)] != NONE && op[AT(q)] == WRITE && left[AT(q)] == 0)
#endif
/* A successor begins when no read or write of the dead one is under way. */
#ifdef NO_IO_ENDED
#define IO_ENDED true
#else
#define IO_ENDED (!left[0] && !left[1] && !left[S - 2] && !left[S - 1])
#endif
/* The seal: its sums fit the tile, and its t the step that is expected. */
#ifdef NO_SEAL_STEP
#define SEAL_RIGHT(q) (SLOT(q, 0) == SLOT(q, 1))
#else
#define SEAL_RIGHT(q) (SLOT(q, 0) == WHAT(TILE(q), STEP(q) - 1) && SLOT(q, 1) == SLOT(q, 0))
#endif
#ifdef NO_LOOK
#define HAS_LINKS(i) false
#else
#ifdef NO_LATE_LOOK
#define HAS_LINKS(i) looked[i]
#else
#define HAS_LINKS(i) LINKED(i, name[i])
#endif
#endif

inline start(what, q)
{
	op[AT(q)] = what;
	left[AT(q)] = EACH;
	of_tile[AT(q)] = TILE(q);
	inode[AT(q)] = (what == WRITE && new[TILE(q)] != NONE -> new[TILE(q)] : name[TILE(q)])
}

inline new_file(i)
{
	if
	:: FREE(i, 0) -> new[i] = 0
	:: else ->
		if
		:: FREE(i, 1) -> new[i] = 1
		:: else -> new[i] = (FREE(i, 2) -> 2 : 3)
		fi
	fi
}

/* What the kernel has of slot s goes on, and nobody waits for it. */
inline let_go(s)
{
	if
	:: left[s] -> op[S + s] = op[s]; left[S + s] = left[s]; of_tile[S + s] = of_tile[s]; inode[S + s] = inode[s]
	:: else
	fi;
	op[s] = 0;
	left[s] = 0;
	of_tile[s] = 0;
	inode[s] = 0
}

proctype tier()
{
	byte i;

end:
	do
	:: atomic { tier_lives && !dirty && asked < ALL && MAY_READ && op[AT(asked)] == 0 ->
#ifdef NO_LATE_LOOK
			looked[TILE(asked)] = LINKED(TILE(asked), name[TILE(asked)]);
#endif
			start(READ, asked);
			asked++ }
	:: atomic { tier_lives && !dirty && MAY_WRITE && op[AT(begun)] == 0 ->
			if
			:: HAS_LINKS(TILE(begun)) -> new_file(TILE(begun))
			:: else
			fi;
			start(WRITE, begun);
			begun++ }
	:: atomic { tier_lives && loaded < asked && op[AT(loaded)] == READ && WHOLE_READ(loaded) ->
			if
			:: left[AT(loaded)] || SEAL_RIGHT(loaded) -> let_go(AT(loaded)); loaded++
			:: else -> assert(lost); dirty = true; break
			fi }
	:: atomic { tier_lives && TO_RENAME(written) ->
			name[TILE(written)] = new[TILE(written)];
			new[TILE(written)] = NONE }
#ifdef NO_RENAME_FIRST
	:: atomic { tier_lives && written > 0 && TO_RENAME(written - 1) ->
			name[TILE(written - 1)] = new[TILE(written - 1)];
			new[TILE(written - 1)] = NONE }
#endif
	:: atomic {
			tier_lives && written < begun && op[AT(written)] == WRITE && WHOLE_WRITE(written) && RENAMED(written) ->
			let_go(AT(written));
			written++ }
	:: atomic { !tier_lives && IO_ENDED ->
			for (i : 0 .. S - 1) { let_go(i) }
			for (i : 0 .. T - 1) { new[i] = NONE } /* it deletes NAME.new */
			i = 0;
			asked = loaded;
			begun = written;
			tier_lives = true }
	od
}

/* ---- mt-optim */

byte at[HALVES];            /* its own: the q that a partition does next */
bit inside[HALVES];         /* ... is in */
bit due, due_unit[U];       /* counted in `applied`, not in `updated`; counted, not published */

#if PARTITIONS == 2
#define THROUGH MIN(at[0], at[1])
#define FIRST_THROUGH MAX(at[0], at[1])
#else
#define THROUGH at[0]
#define FIRST_THROUGH at[0]
#endif
#ifdef NO_ALL_PARTITIONS
#define PASSED FIRST_THROUGH
#else
#define PASSED THROUGH
#endif
#ifdef NO_LOAD_WAIT
#define LOADED ALL
#else
#define LOADED loaded
#endif
#ifdef NO_TILE_PIN
#define PINNED(q) false
#else
#define PINNED(q) pin[UNIT(TILE(q))]
#endif
#ifdef DIRECT /* --grad none: the partitions do one piece after the other; here each has a tile */
#define NEXT(p) (at[p] == applied && !due)
#else
#define NEXT(p) true
#endif
#ifdef NO_PUBLISH_COUNTED
#define TO_PUBLISH(u) due_unit[u]
#else
#define TO_PUBLISH(u) true
#endif
/* The last tile of the unit's next step */
#define COUNTED(u) (updated >= version[u] * T + END_OF(u))
#ifdef NO_COUNT_FIRST
#define MAY_PUBLISH(u) (PASSED >= version[u] * T + END_OF(u))
#define MAY_COUNT (TILE(updated + 1) != END_OF(0) % T && TILE(updated + 1) != 0 || \
	version[UNIT(TILE(updated))] == STEP(updated))
#else
#define MAY_PUBLISH(u) (COUNTED(u) && TO_PUBLISH(u))
#define MAY_COUNT true
#endif

inline half(p, value)
{
	SLOT(at[p], p) = value;
#if PARTITIONS == 1
	SLOT(at[p], 1) = value
#endif
}

/* The slot has the tile as it was after the step before, and no reader trusts the unit's weights yet. */
inline enter(p)
{
	assert(SLOT(at[p], p) == WHAT(TILE(at[p]), STEP(at[p]) - 1));
	assert(version[UNIT(TILE(at[p]))] == STEP(at[p]) - 1);
	journal[p] = SLOT(at[p], p);
	stands[p] = at[p] + 1;
	half(p, TORN);
	inside[p] = true
}

inline leave(p)
{
	assert(SLOT(at[p], p) == TORN);
	half(p, WHAT(TILE(at[p]), STEP(at[p])));
	inside[p] = false;
	at[p]++
}

proctype partition(byte p)
{
end:
	do
	:: atomic { optim_lives && !inside[p] && at[p] < LOADED && at[p] < committed * T && !PINNED(at[p]) && NEXT(p) ->
			enter(p) }
	:: atomic { optim_lives && inside[p] -> leave(p) }
	od
}

inline counted(q)
{
	if
	:: END_OF(UNIT(TILE(q))) == TILE(q) + 1 -> due_unit[UNIT(TILE(q))] = true
	:: else
	fi
}

/* A successor: the half that a partition's index names is as it was before, and the partition goes on there. */
#ifdef DIRECT
#define FROM applied
#define TO_RESTORE(p) (stands[p] == applied + 1)
#else
#define FROM updated
#ifdef NO_RESTORE_BOUND
#define TO_RESTORE(p) (stands[p] > 0)
#else
#define TO_RESTORE(p) (stands[p] > updated)
#endif
#endif

inline resume(p)
{
	if
	:: TO_RESTORE(p) ->
		at[p] = stands[p] - 1;
		half(p, journal[p]);
		at[p] = MAX(at[p], FROM)
	:: else -> at[p] = FROM
	fi;
#ifdef NO_RESUME_INSIDE
	at[p] = updated
#endif
}

proctype optim()
{
end:
	do
#ifndef DIRECT
	:: atomic { optim_lives && updated < PASSED && MAY_COUNT -> counted(updated); updated++ }
#else
#ifdef NO_APPLIED_FIRST
	:: atomic { optim_lives && !due && applied == updated && updated < PASSED ->
			counted(updated);
			updated++;
			due = true }
	:: atomic { optim_lives && (due || applied < updated && applied < PASSED) -> applied++; due = false }
#else
	:: atomic { optim_lives && !due && applied == updated && applied < PASSED -> applied++; due = true }
	:: atomic { optim_lives && due -> counted(updated); updated++; due = false }
#endif
#endif
	:: atomic { optim_lives && version[0] < committed && MAY_PUBLISH(0) -> version[0]++; due_unit[0] = false }
	:: atomic { optim_lives && version[1] < committed && MAY_PUBLISH(1) -> version[1]++; due_unit[1] = false }
	:: atomic { optim_lives && done < committed && version[0] == committed && version[1] == committed &&
			(!SAVE(committed) || !pinned) ->
			if
			:: SAVE(committed) -> pinned = committed; pin[0] = true; pin[1] = true
			:: else
			fi;
			done = committed }
	:: atomic { !optim_lives ->
#ifdef DIRECT
#ifndef NO_APPLIED_COUNTS
			updated = MAX(updated, applied);
#endif
#endif
			resume(0);
#if PARTITIONS == 2
			resume(1);
#endif
			optim_lives = true }
	od
}

/* ---- mt-ckpt */

byte linked;                /* its own: tiles that it has linked */
bit old;                    /* the checkpoint before is still there */

#ifdef NO_LINK_WRITTEN
#define MAY_LINK(i) true
#else
#define MAY_LINK(i) (written > (pinned - 1) * T + (i))
#endif
#ifdef NO_UNPIN_LINKED
#define MAY_UNPIN(u) true
#else
#define MAY_UNPIN(u) (linked >= END_OF(u))
#endif

inline forget(c)
{
	for (i : 0 .. T - 1) { LINK(c, i) = NONE }
	i = 0
}

proctype ckpt()
{
	byte i;

end:
	do
	:: atomic { ckpt_lives && old -> forget(next); old = false }
	:: atomic { ckpt_lives && pinned && !old && linked < T && MAY_LINK(linked) ->
			LINK(next, linked) = name[linked];
			linked++ }
	:: atomic { ckpt_lives && pinned && !old && pin[0] && MAY_UNPIN(0) -> pin[0] = false }
	:: atomic { ckpt_lives && pinned && !old && pin[1] && MAY_UNPIN(1) -> pin[1] = false }
	:: atomic { ckpt_lives && pinned && linked == T && !pin[0] && !pin[1] ->
			for (i : 0 .. T - 1) {
				assert(FILE(i, LINK(next, i), 0) == WHAT(i, pinned) && FILE(i, LINK(next, i), 1) == WHAT(i, pinned))
			}
			i = 0;
			linked = 0;
			next = 1 - next;
			old = true;
			pinned = 0 }
	/* a successor deletes what is not sealed. The save begins anew, or has failed if a unit is no longer pinned */
	:: atomic { !ckpt_lives ->
			forget(next);
			if
			:: pinned && !(pin[0] && pin[1]) -> pin[0] = false; pin[1] = false; pinned = 0
			:: else
			fi;
			ckpt_lives = true }
	od
}

/* ---- kills, and mt-step */

proctype killer()
{
end:
	do
	:: atomic { kills < KILLS && tier_lives -> kills++; tier_lives = false; asked = 0; begun = 0 }
	:: atomic { kills < KILLS && optim_lives ->
			kills++;
			optim_lives = false;
			at[0] = 0;
			at[1] = 0;
			inside[0] = false;
			inside[1] = false;
			due = false;
			due_unit[0] = false;
			due_unit[1] = false }
	:: atomic { kills < KILLS && ckpt_lives && SAVE(1) -> kills++; ckpt_lives = false; linked = 0; old = false }
	od
}

proctype step()
{
	byte i;

	do
	:: atomic { committed < STEPS && done == committed -> committed++ }
	:: atomic { dirty || done == STEPS && written == ALL && !pinned -> break }
	od;
	atomic {
		for (i : 0 .. T - 1) {
			assert(dirty || lost || FILE(i, name[i], 0) == WHAT(i, STEPS) && FILE(i, name[i], 1) == WHAT(i, STEPS))
		}
#ifdef REACH_END
		assert(kills < REACH_END) /* to see that it is reached */
#endif
	}
}

/* Order of a pass and counters */
active proctype watch()
{
end:
	atomic { !(written <= updated && updated <= loaded && loaded <= written + S) -> assert(false) }
}

init
{
	byte i, k;

	atomic {
		for (i : 0 .. T - 1) {
			for (k : 0 .. F - 1) {
				FILE(i, k, 0) = TORN;
				FILE(i, k, 1) = TORN
			}
			/* the run was loaded from a checkpoint, whose files have two links */
			FILE(i, 0, 0) = WHAT(i, 0);
			FILE(i, 0, 1) = WHAT(i, 0);
			new[i] = NONE;
			LINK(1, i) = NONE
		}
		for (i : 0 .. S * HALVES - 1) { slot[i] = TORN }
		next = 1;
		for (i : 0 .. S - 1) {
			run kernel(i, i);
#ifdef NO_IO_ENDED
			run kernel(i, S + i)
#endif
		}
		run tier();
		run partition(0);
#if PARTITIONS == 2
		run partition(1);
#endif
		run optim();
		run ckpt();
		run killer();
		run step();
		i = 0;
		k = 0
	}
}
