/* stream-objective: mt-stream/objective.c against PyTorch's numbers, and by its properties.
 *
 *     stream-objective FILE    each line of FILE (tests/golden/objectives.py); prints the largest error of each loss
 *     stream-objective         whole micro-batches: sides, rows, scales, hostile log-probabilities
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../mt-stream/objective.h"
#include "cli/cli.h"
#include "mt/error.h"
#include "splitmix.h"

#define LIMIT 1e-12 /* relative */
#define TINY 1e-300 /* below it, a number counts as 0 */

static double worst[MT_LOSS_KINDS];
static bool failed;

static void check(uint32_t kind, int line, const char *what, double got, double want)
{
	double error = fabs(got - want) <= TINY ? 0 : fabs(got - want) / fmax(fabs(got), fabs(want));
	if (!(error <= LIMIT))
		failed = (printf("line %d: %s %s: %.17g, not %.17g\n", line, mt_losses[kind].name, what, got, want), 1);
	worst[kind] = fmax(worst[kind], error);
}

static void check_pair(const struct mt_objective *o, int line, const double *x)
{
	struct side chosen = {x[0], x[1], (uint64_t)x[2]}, rejected = {x[3], x[4], (uint64_t)x[5]};
	struct pair p = objective_pair(o, &chosen, &rejected);
	check(o->kind, line, "loss", p.loss, x[6]);
	check(o->kind, line, "scale of chosen", p.scale[0], x[7]);
	check(o->kind, line, "scale of rejected", p.scale[1], x[8]);
	check(o->kind, line, "reward of chosen", p.reward[0], x[9]);
	check(o->kind, line, "reward of rejected", p.reward[1], x[10]);
}

static void check_answer(const struct mt_objective *o, int line, const double *x)
{
	struct side side = {x[1], x[2], (uint64_t)x[3]};
	struct answer a = objective_answer(o, (enum mt_side)x[0], &side);
	check(o->kind, line, "loss", a.loss, x[4]);
	check(o->kind, line, "scale", a.scale, x[5]);
	check(o->kind, line, "reward", a.reward, x[6]);
}

static void check_target(const struct mt_objective *o, int line, const double *x)
{
	struct target t = objective_target(o, x[0], x[1], x[2]);
	check(o->kind, line, "loss", t.loss, x[3]);
	check(o->kind, line, "scale", t.scale, x[4]);
	check(o->kind, line, "clipped", t.clipped, x[5]);
}

static int golden(const char *path)
{
	FILE *f = fopen(path, "r");
	char text[1024];
	int line = 0;
	if (!f) mt_die(MT_EX_NOINPUT, "%s: %m", path);
	while (fgets(text, sizeof text, f)) {
		double x[17];
		enum mt_objective_kind kind;
		int n = 0;
		char *at = text + strcspn(text, " ");
		*at++ = 0;
		mt_must(mt_loss_parse(text, &kind));
		for (char *end; n < 17; n++, at = end)
			if ((x[n] = strtod(at, &end), end == at)) break;
		line++;
		static const struct {
			int numbers;
			void (*check)(const struct mt_objective *, int line, const double *);
		} of[] = {[MT_TARGETS] = {12, check_target}, [MT_ANSWERS] = {13, check_answer}, [MT_PAIRS] = {17, check_pair}};
		enum mt_loss_unit unit = mt_losses[kind].unit;
		MT_ASSERT(mt_is_objective(kind) && n == of[unit].numbers);
		struct mt_objective o =
			{.kind = kind, .beta = x[0], .gamma = x[1], .low = x[2], .high = x[3], .scale = x[4], .chosen_scale = x[5]};
		of[unit].check(&o, line, x + 6);
	}
	fclose(f);
	for (int k = MT_PG; k < MT_LOSS_KINDS; k++) printf("%s: errors of at most %.2g\n", mt_losses[k].name, worst[k]);
	printf("%d lines\n", line);
	return failed;
}

/* ---- micro-batches ---- */

enum { ROWS = 3, SEQ = 40, N = ROWS * SEQ, DOCUMENTS = 4 * ROWS };

static uint32_t targets[N];
static float advantages[N], old[N];
static double losses[N];
static struct mt_document documents[DOCUMENTS];
static uint64_t seed = 1;

static double uniform(void) { return (double)(splitmix_next(&seed) >> 11) * 0x1p-53; }

/* Four documents of eight positions a row, and padding; their last position and some others have no target */
static void draw(bool pairs)
{
	for (uint32_t i = 0; i < N; i++) {
		uint32_t t = i % SEQ;
		bool target = t < 32 && t % 8 != 7 && (t % 8 == 0 || uniform() < 0.8);
		targets[i] = target ? 5 : MT_NO_TARGET;
		losses[i] = target ? 4 * uniform() : 0;
		old[i] = target ? (float)(-losses[i] + uniform() - 0.5) : 0;
		advantages[i] = (float)(2 * uniform() - 1);
		if (t >= 32 || t % 8) continue;
		struct mt_document *d = &documents[i / SEQ * 4 + t / 8];
		bool chosen = pairs && (i / SEQ + t / 8 + t / 16) % 2;
		*d = (struct mt_document){i, !pairs ? MT_SIDE_NONE : chosen ? MT_CHOSEN : MT_REJECTED, -8 * uniform()};
	}
}

static struct objective_sums sums_of(const struct mt_objective *how, float *scales, uint32_t rows_at_once)
{
	struct objective o = {.how = how,
		.document = documents,
		.documents = DOCUMENTS,
		.seq = SEQ,
		.targets = targets,
		.advantages = advantages,
		.old = old,
		.losses = losses,
		.loss_scale = 1.0 / 77};
	struct objective_sums s = {0};
	for (uint32_t r = 0; r < ROWS; r += rows_at_once)
		objective_add(&o, r * SEQ, (r + rows_at_once < ROWS ? r + rows_at_once : ROWS) * SEQ, scales, &s);
	return s;
}

static void sides_swap(void)
{
	for (uint32_t d = 0; d < DOCUMENTS; d++) documents[d].side = MT_CHOSEN + MT_REJECTED - documents[d].side;
}

static void expect(bool good, const char *what, const char *loss)
{
	if (!good) failed = (printf("%s: %s\n", loss, what), 1);
}

/* Rows at once change nothing, nor does it if scales are not asked for; the derivative is that of the loss */
static void check_micro(const struct mt_objective *how)
{
	const char *name = mt_losses[how->kind].name;
	float scales[N], again[N];
	struct objective_sums all = sums_of(how, scales, ROWS);
	for (uint32_t rows = 1; rows <= ROWS; rows++) {
		memset(again, 0xff, sizeof again);
		struct objective_sums some = sums_of(how, again, rows);
		expect(!memcmp(&some, &all, sizeof all) && !memcmp(again, scales, sizeof scales), "passes differ", name);
	}
	struct objective_sums unscaled = sums_of(how, NULL, ROWS);
	expect(!memcmp(&unscaled, &all, sizeof all), "losses alone differ", name);
	if (mt_losses[how->kind].unit == MT_TARGETS)
		expect(all.figures[MT_SUM_TARGETS] == (double)all.targets, "wrong count", name);
	else
		expect(all.figures[MT_SUM_OF_CHOSEN] == DOCUMENTS / 2 && all.figures[MT_SUM_OF_REJECTED] == DOCUMENTS / 2,
			"wrong count", name);
	for (uint32_t i = 0; i < N; i++) {
		double was = losses[i], by = 1e-5;
		if (targets[i] == MT_NO_TARGET) {
			expect(scales[i] == 0, "a scale without target", name);
			continue;
		}
		losses[i] = was + by;
		double more = sums_of(how, NULL, ROWS).loss;
		losses[i] = was - by;
		double slope = 77 * (more - sums_of(how, NULL, ROWS).loss) / (2 * by);
		losses[i] = was;
		expect(fabs(slope - (double)scales[i]) <= 1e-6 * (1 + fabs(slope)), "a wrong derivative", name);
	}
}

static void check_sides(const struct mt_objective *how)
{
	const char *name = mt_losses[how->kind].name;
	struct objective_sums a = sums_of(how, NULL, ROWS);
	sides_swap();
	struct objective_sums b = sums_of(how, NULL, ROWS);
	sides_swap();
	expect(a.figures[MT_SUM_CHOSEN] == b.figures[MT_SUM_REJECTED] &&
			a.figures[MT_SUM_REJECTED] == b.figures[MT_SUM_CHOSEN],
		"swapped sides do not swap rewards", name);
	expect(a.figures[MT_SUM_RIGHT] + b.figures[MT_SUM_RIGHT] == DOCUMENTS, "swapped sides do not turn accuracy round",
		name);
}

/* The reference is the policy: dpo's loss is ln 2, kto's 1/2, whatever the documents are; simpo's and orpo's of equal
 * ones */
static void check_equal(const struct mt_objective *how)
{
	struct mt_objective o = *how;
	float scales[N];
	bool pairs = mt_losses[o.kind].unit == MT_PAIRS;
	o.gamma = 0;
	o.chosen_scale = pairs ? 0 : o.scale;
	for (uint32_t i = 0; i < N; i++) losses[i] = targets[i] == MT_NO_TARGET ? 0 : 1.25;
	for (uint32_t d = 0; d < DOCUMENTS; d++) {
		documents[d].ref = 0;
		for (uint32_t i = documents[d].begin; i < documents[d].begin + 8; i++) documents[d].ref += 0 - losses[i];
	}
	struct objective_sums s = sums_of(&o, scales, ROWS);
	double factor = o.kind == MT_ORPO ? o.beta : pairs ? 1 : 2, want = pairs ? M_LN2 : 0.5;
	expect(fabs(s.loss / o.scale / (DOCUMENTS / 2) / factor - want) < 1e-15, "not ln 2 or 1/2", mt_losses[o.kind].name);
	expect(s.figures[MT_SUM_CHOSEN] == s.figures[MT_SUM_REJECTED] && s.figures[MT_SUM_RIGHT] == DOCUMENTS / 2.0,
		"a margin", mt_losses[o.kind].name);
}

/* A loss that is no number says so, and nothing else is out of bounds */
static void check_hostile(const struct mt_objective *how)
{
	static const double bad[] = {NAN, INFINITY, -INFINITY, 1e4, 1e300, 0};
	float scales[N];
	for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
		draw(mt_losses[how->kind].unit != MT_TARGETS);
		for (uint32_t i = documents[1].begin; i < documents[1].begin + 8; i++)
			if (targets[i] != MT_NO_TARGET) losses[i] = bad[b];
		struct objective_sums s = sums_of(how, scales, ROWS);
		bool finite = true;
		for (uint32_t i = 0; i < N; i++) finite &= isfinite(scales[i]);
		expect(finite || !isfinite(s.loss), "a finite loss of scales that are not", mt_losses[how->kind].name);
		expect(!isnan(bad[b]) || !isfinite(s.loss), "a finite loss of what is not a number", mt_losses[how->kind].name);
	}
}

int main(int argc, char **argv)
{
	mt_cli(&(struct mt_program){.name = "stream-objective",
			   .usage = "see the source",
			   .about = "",
			   .opts = (const struct mt_opt[]){{0}}},
		argc > 1 ? 1 : argc, argv, NULL, 0);
	if (argc == 2) return golden(argv[1]);
	for (uint32_t kind = MT_PG; kind < MT_LOSS_KINDS; kind++) {
		struct mt_objective how = {.kind = kind,
			.scale = 1.0 / 8,
			.beta = kind == MT_SIMPO ? 2 : 0.1,
			.gamma = 1,
			.low = 0.2,
			.high = 0.28,
			.chosen_scale = 1.0 / 37};
		bool answers = mt_losses[kind].unit != MT_TARGETS;
		for (int i = 0; i < 50; i++) {
			draw(answers);
			check_micro(&how);
			if (answers) check_sides(&how);
		}
		if (answers) check_equal(&how);
		check_hostile(&how);
	}
	return failed;
}
