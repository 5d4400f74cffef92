/* figures.h: the numbers of a trained step: fields of struct mt_figures, and their keys in a line of metrics and in
 * run.json's unlogged steps. F(field, key, kind, which models g have it); `times` stands where a line has its times.
 * mt-step(1) lists the keys. Not public. */
/* clang-format off */
#define MT_FIGURES(F, times) \
	F(loss, "loss", NUMBER, true) \
	F(norm, "grad_norm", NUMBER, true) \
	F(lr, "lr", NUMBER, true) \
	F(tokens, "tokens", COUNT, true) \
	F(processed, "processed", COUNT_OR_NONE, true) \
	times \
	F(skipped, "skipped", BOOL, true) \
	F(aux, "aux_loss", NUMBER_OR_NONE, g->aux_coef != 0) \
	F(z, "z_loss", NUMBER_OR_NONE, g->z_coef != 0)
/* clang-format on */
