/* figures.h: the numbers of a trained step, and how fast steps are (MT_PACE). A line of MT_FIGURES gives a figure its
 * place in struct mt_figures and in struct mt_txn, their records in abi.h, and what it is called in a line of metrics,
 * in run.json's unlogged steps, in mt-store stat --json and for Prometheus. mt-step(1) lists the keys.
 *
 * F(x, field, kind, from, key, has, metric, help): x is handed through; kind says type and notation; from: its value in
 * transaction *t; has: which models *g have it; metric and help: Prometheus's. */
#ifndef LIBMT_FIGURES_H
#define LIBMT_FIGURES_H

/* clang-format off */

#define MT_FIGURES_FIRST(F, x) \
	F(x, loss, NUMBER, mean_loss(t), "loss", true, \
		"loss", "Mean loss of the last committed step's targets; NaN if it was not finite.") \
	F(x, norm, NUMBER, t->norm, "grad_norm", true, \
		"grad_norm", "Gradient norm of the last committed step before clipping; NaN if not computed.") \
	F(x, lr, NUMBER, t->lr, "lr", true, "learning_rate", "Learning rate of the last committed step.") \
	F(x, tokens, COUNT, t->targets, "tokens", true, "last_step_tokens", "Targets of the last committed step.")

#define MT_FIGURES_LAST(F, x) \
	F(x, skipped, BOOL, t->skipped, "skipped", true, \
		"step_skipped", "1 if the last committed step changed no weight.") \
	F(x, aux, NUMBER_OR_NONE, t->aux, "aux_loss", g->aux_coef != 0, \
		"aux_loss", "Auxiliary loss of the last committed step, without its coefficient.") \
	F(x, z, NUMBER_OR_NONE, t->z, "z_loss", g->z_coef != 0, \
		"z_loss", "z-loss of the last committed step, without its coefficient.")

/* What is added goes to the end of this list: mt-step (or mt-optim, before it commits) stores it in the txn's field of
 * that name. It is a new MT_ABI, and `make abi-page` writes the page. */
#define MT_FIGURES_MORE(F, x) \
	F(x, processed, COUNT, t->processed, "processed", true, \
		"last_step_processed_tokens", "Tokens of documents in the last committed step, without padding.") \
	F(x, mtp, NUMBER_OR_NONE, t->mtp, "mtp_loss", g->mtp != 0, \
		"mtp_loss", "Loss of multi-token prediction of the last committed step, without its weight.")

/* In the order of a line of metrics, which has its times at `times`; in the order in which they lie in mt_figures */
#define MT_FIGURES(F, times) MT_FIGURES_FIRST(F, ) MT_FIGURES_MORE(F, ) times MT_FIGURES_LAST(F, )
#define MT_FIGURES_LAID(F, x) MT_FIGURES_FIRST(F, x) MT_FIGURES_LAST(F, x) MT_FIGURES_MORE(F, x)

/* Each takes 8 bytes in shared memory */
#define MT_FIGURE_FIELD(x, field, kind, ...) MT_FIGURE_##kind(field)
#define MT_FIGURE_NUMBER(field) double field;
#define MT_FIGURE_NUMBER_OR_NONE(field) double field;
#define MT_FIGURE_COUNT(field) uint64_t field;
#define MT_FIGURE_BOOL(field) uint32_t field, reserved_##field;

#define MT_FIGURE_INDEX(x, field, ...) MT_FIGURE_##x##_##field,
enum { MT_FIGURE_AT_step, MT_FIGURES_LAID(MT_FIGURE_INDEX, AT) MT_FIGURES_WORDS }; /* of mt_figures */
enum { MT_FIGURES_MORE(MT_FIGURE_INDEX, IN_TXN) MT_FIGURES_IN_TXN };               /* after mt_txn's position */

/* How fast steps are, which is not in shared memory: mt-step measures the step of a line; for mt-store stat, which
 * calls it `field`, and for Prometheus it is the mean since mt-step started, in mt-top that of the last steps.
 *
 * F(field, key, format, always, before, text, after, metric, help): key, format: of a line; always: a line has it where
 * it is not known, too, as null, and mt-top as -; before, text, after: in mt-top, with the text_... that writes it */
#define MT_PACE(F) \
	F(tokens_per_s, "tokens_per_s", "%.1f", true, "", count, " tokens/s  ", \
		"tokens_per_second", "Tokens of documents a second, without padding; mean since mt-step started.") \
	F(step_s, "time_s", "%.6f", true, "", duration, " a step  ", \
		"step_seconds", "Mean seconds a step since mt-step started.") \
	F(planned_s, "planned_s", "%.6g", false, "planned ", duration, "  ", \
		"planned_step_seconds", "Seconds that the plan of the mt-stream predicts for a step.") \
	F(mfu, "mfu", "%.4g", false, "MFU ", percent, "  ", \
		"mfu", "Share of a step that the model's arithmetic takes at the rate of large GEMMs.") \
	F(optim_wait, "optim_wait", "%.4g", false, "update wait ", percent, "  ", \
		"optim_wait", "Share of a step in which compute waits for weights to be updated.")

struct mt_pace {                /* NAN: not known */
#define MT_PACE_FIELD(field, ...) double field;
	MT_PACE(MT_PACE_FIELD)
};
/* What it is made of: sums over steps, from any moment on */
struct mt_work { uint64_t steps, tokens, wait_ns; };

/* clang-format on */

#endif
