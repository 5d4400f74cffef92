/* figures.h: the numbers of a trained step: fields of struct mt_figures. F(field, key, kind, which models g have it,
 * Prometheus's name, its help): keys are those of a line of metrics, of run.json's unlogged steps and of mt-store stat
 * --json; mt-step(1) lists them. `times` stands where a line has its times. Not public. */
/* clang-format off */
#define MT_FIGURES(F, times) \
	F(loss, "loss", NUMBER, true, \
		"loss", "Mean loss of the last committed step's targets; NaN if it was not finite.") \
	F(norm, "grad_norm", NUMBER, true, \
		"grad_norm", "Gradient norm of the last committed step before clipping; NaN if not computed.") \
	F(lr, "lr", NUMBER, true, "learning_rate", "Learning rate of the last committed step.") \
	F(tokens, "tokens", COUNT, true, "last_step_tokens", "Targets of the last committed step.") \
	F(processed, "processed", COUNT_OR_NONE, true, \
		"last_step_processed_tokens", "Tokens of documents in the last committed step, without padding.") \
	times \
	F(skipped, "skipped", BOOL, true, "step_skipped", "1 if the last committed step changed no weight.") \
	F(aux, "aux_loss", NUMBER_OR_NONE, g->aux_coef != 0, \
		"aux_loss", "Auxiliary loss of the last committed step, without its coefficient.") \
	F(z, "z_loss", NUMBER_OR_NONE, g->z_coef != 0, \
		"z_loss", "z-loss of the last committed step, without its coefficient.")
/* clang-format on */
