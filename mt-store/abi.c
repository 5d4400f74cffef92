/* abi.c: stat --abi: where every shared field is, so that a program in any language can read a run without copying
 * numbers. shm/abi.h is the one list of fields; types are the compiler's. */
#include <jansson.h>

#include "abi.h"
#include "look.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/txn.h"
#include "mt/version.h"
#include "store.h"

/* ---- types of fields */

#define TYPE_NAME(f) \
	_Generic((f), char *: "char", uint8_t *: "u8", uint16_t: "u16", uint32_t: "u32", int32_t: "i32", uint64_t: "u64", \
		float: "f32", double: "f64", float *: "f32", double *: "f64", uint32_t *: "u32", uint64_t *: "u64", \
		_Atomic uint64_t *: "u64", uint8_t (*)[MT_GROUP * 16]: "u8", struct mt_header: "mt_header", \
		struct mt_geometry: "mt_geometry", struct mt_layer *: "mt_layer", struct mt_record: "mt_record", \
		struct mt_snapshot: "mt_snapshot", \
		struct mt_position: "mt_position", struct mt_slot *: "mt_slot", struct mt_txn *: "mt_txn", \
		struct mt_figures *: "mt_figures", struct mt_hyper *: "mt_hyper", struct mt_loss *: "mt_loss", \
		struct mt_nodes: "mt_nodes", struct mt_tier: "mt_tier")
/* Words that several stages change, with the memory orders of the protocol */
#define IS_ATOMIC(f) \
	_Generic(&(f), _Atomic uint32_t * : true, _Atomic uint64_t * : true, _Atomic uint64_t(*)[8] : true, default : false)

static const struct field {
	const char *of, *name, *type;
	size_t offset, size;
	bool atomic;
} fields[] = {
#define FIELD(s, f, off, bytes) \
	{#s, #f, TYPE_NAME(((struct s *)0)->f), offsetof(struct s, f), sizeof(((struct s *)0)->f), \
		IS_ATOMIC(((struct s *)0)->f)},
	MT_ABI_FIELDS(FIELD)};

static const struct {
	const char *name;
	size_t size;
} sizes[] = {
#define SIZE(s, bytes) {#s, sizeof(struct s)},
	MT_ABI_SIZES(SIZE)};

#define COUNT(a) (sizeof(a) / sizeof *(a))

int abi_text(void)
{
	const char *last = "";
	for (const struct field *f = fields; f < fields + COUNT(fields); f++) {
		if (strcmp(f->of, last)) printf("%s%s\n", *last ? "\n" : "", f->of);
		last = f->of;
		printf("%7zu %6zu  %s\n", f->offset, f->size, f->name);
	}
	printf("\nsizes\n");
	for (size_t i = 0; i < COUNT(sizes); i++) printf("%7zu  %s\n", sizes[i].size, sizes[i].name);
	return 0;
}

/* ---- constants */

struct constant {
	const char *name;
	uint64_t value;
};

static const struct constant limits[] = {
	{"run_name", MT_RUN_NAME},
	{"streams", MT_STREAMS},
	{"nodes", MT_NODES},
	{"rings", MT_RINGS},
	{"slots", MT_SLOTS},
	{"micros", MT_MICROS},
	{"partitions", MT_PARTITIONS},
	{"group", MT_GROUP},
	{"block", MT_BLOCK},
	{"choices", MT_CHOICES},
	{"last_transaction", MT_TXN_LAST},
	{"no_target", MT_NO_TARGET},
	{"context_only", MT_CONTEXT_ONLY},
};
static const struct constant slots[] = {{"mt-store", MT_STORE}, {"mt-step", MT_STEP}, {"mt-optim", MT_OPTIM},
	{"mt-ckpt", MT_CKPT}, {"fill", MT_FILL}, {"mt-tier", MT_TIER}, {"mt-link", MT_LINK}, {"mt-stream", MT_STREAM}};
static const struct constant kinds[] = {{"train", MT_TRAIN}, {"eval", MT_EVAL}};
static const struct constant messages[] = {{"batch", MT_MSG_BATCH}, {"loss", MT_MSG_LOSS}, {"grad", MT_MSG_GRAD},
	{"save", MT_MSG_SAVE}, {"squares", MT_MSG_SQUARES}, {"score", MT_MSG_SCORE}, {"figures", MT_MSG_FIGURES},
	{"top", MT_MSG_TOP}};
#define OBJECTIVE(kind, name, ...) {name, MT_##kind},
static const struct constant objectives[] = {MT_LOSSES(OBJECTIVE)};
static const struct constant sides[] = {{"none", MT_SIDE_NONE}, {"chosen", MT_CHOSEN}, {"rejected", MT_REJECTED}};
#define GEOMETRY_FLAG(name, bit, word) {#word, MT_##name},
static const struct constant flags[] = {MT_FLAGS(GEOMETRY_FLAG)};

/* The bit fields of a word: (lowest bit, bits) */
static const struct bit_field {
	const char *word, *name;
	int shift, bits;
} bit_fields[] = {
	{"mt_txn.word", "k", 32, 32},
	{"mt_txn.word", "attempt", 8, 24},
	{"mt_txn.word", "phase", 0, 8},
	{"mt_snapshot.word", "step", 8, 56},
	{"mt_snapshot.word", "phase", 0, 8},
	{"mt_slot.word", "pid", 42, 22},
	{"mt_slot.word", "locked", 41, 1},
	{"mt_slot.word", "start_time", 16, 25},
	{"mt_slot.word", "generation", 0, 16},
};

/* ---- JSON */

static json_t *constants_object(const struct constant *c, size_t n)
{
	json_t *o = json_object();
	for (size_t i = 0; i < n; i++) json_object_set_new(o, c[i].name, json_integer((json_int_t)c[i].value));
	return o;
}
#define CONSTANTS(table) constants_object(table, COUNT(table))

/* Names of an enum, from the function that stat prints them by */
#define WORDS(o, word, first, last) \
	for (uint32_t i = (first); i <= (last); i++) json_object_set_new(o, word(i), json_integer(i))

static json_t *bit_fields_object(void)
{
	json_t *o = json_object();
	for (const struct bit_field *p = bit_fields; p < bit_fields + COUNT(bit_fields); p++) {
		if (!json_object_get(o, p->word)) json_object_set_new(o, p->word, json_object());
		json_object_set_new(json_object_get(o, p->word), p->name,
			json_pack("{s:i, s:i}", "shift", p->shift, "bits", p->bits));
	}
	return o;
}

static json_t *counters_object(void)
{
	json_t *o = json_object();
	for (const struct constant *slot = slots; slot < slots + COUNT(slots); slot++) {
		const char *const *name = counter_words((int)slot->value);
		json_t *names = *name ? json_array() : NULL;
		for (; *name; name++) json_array_append_new(names, json_string(*name));
		if (names) json_object_set_new(o, slot->name, names);
	}
	return o;
}

static json_t *constants(void)
{
	json_t *o = json_object(), *states = json_object(), *phases = json_object(), *snaps = json_object();
	json_t *dtypes = json_object(), *optims = json_object();
	WORDS(states, state_word, 0, MT_GONE);
	WORDS(phases, phase_word, 0, MT_LOGGED);
	WORDS(snaps, snap_word, 0, MT_FAILED);
	WORDS(dtypes, mt_dtype_name, MT_BF16, MT_INT8);
	WORDS(optims, mt_optim_name, MT_ADAMW, MT_SGD);
	json_object_set_new(o, "magic",
		json_pack("{s:s, s:s, s:s, s:s, s:s}", "control", "mtCONTRL", "rings", "mtRINGS ", "store", "mtSTORE ", "files",
			"mtFILES ", "ring", "mtRING  "));
	json_object_set_new(o, "states", states);
	json_object_set_new(o, "phases", phases);
	json_object_set_new(o, "snapshot_phases", snaps);
	json_object_set_new(o, "dtypes", dtypes);
	json_object_set_new(o, "optims", optims);
	json_object_set_new(o, "slots", CONSTANTS(slots));
	json_object_set_new(o, "kinds", CONSTANTS(kinds));
	json_object_set_new(o, "messages", CONSTANTS(messages));
	json_object_set_new(o, "objectives", CONSTANTS(objectives));
	json_object_set_new(o, "sides", CONSTANTS(sides));
	json_object_set_new(o, "flags", CONSTANTS(flags));
	json_object_set_new(o, "limits", CONSTANTS(limits));
	json_object_set_new(o, "words", bit_fields_object());
	json_object_set_new(o, "counters", counters_object());
	/* of the array of mt_ringbuf in a rings region; bytes of the control file that are locked */
	json_object_set_new(o, "first_ring", json_integer(offsetof(struct mt_rings, ring)));
	return o;
}

static size_t size_of_type(const char *type)
{
	static const struct constant scalars[] = {{"char", 1}, {"u8", 1}, {"u16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
		{"u64", 8}, {"f64", 8}};
	for (size_t i = 0; i < COUNT(scalars); i++)
		if (!strcmp(type, scalars[i].name)) return scalars[i].value;
	for (size_t i = 0; i < COUNT(sizes); i++)
		if (!strcmp(type, sizes[i].name)) return sizes[i].size;
	return 1;
}

static json_t *structures(void)
{
	json_t *o = json_object();
	for (size_t i = 0; i < COUNT(sizes); i++)
		json_object_set_new(o, sizes[i].name,
			json_pack("{s:I, s:o}", "size", (json_int_t)sizes[i].size, "fields", json_object()));
	for (const struct field *f = fields; f < fields + COUNT(fields); f++)
		json_object_set_new(json_object_get(json_object_get(o, f->of), "fields"), f->name,
			json_pack("{s:I, s:I, s:s, s:I, s:b}", "offset", (json_int_t)f->offset, "size", (json_int_t)f->size, "type",
				f->type, "count", (json_int_t)(f->size / size_of_type(f->type)), "atomic", f->atomic));
	return o;
}

int abi_json(void)
{
	int rc = 0;
	json_t *o = json_pack("{s:i, s:s, s:s, s:o, s:o}", "abi", MT_ABI, "version", MT_VERSION, "byte_order", "little",
		"structures", structures(), "constants", constants());
	if (!o) return mt_fail(MT_EX_NOMEM, "no memory for the table of fields");
	if (json_dumpf(o, stdout, JSON_COMPACT)) rc = mt_fail(MT_EX_IO, "stdout: cannot be written");
	else putchar('\n');
	json_decref(o);
	return rc;
}
