/* options.h: the options, checked as far as possible without a run. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "cli/cli.h"
#include "loss.h"
#include "pack.h"
#include "schedule.h"

#define SEQ_MAX (1u << 26) /* keeps rows x seq x 16 bytes far from 2^64 */

struct options {
	const char *run;
	struct schedule schedule;
	uint64_t until, batch, micro, seq; /* batch, micro: rows */
	uint32_t pack;                     /* as in mt_position */
	struct mt_hyperparams hyperparams; /* lr: of each step, by the schedule */
	struct objective objective;
	double wait;
	bool clip_given, beta2_given, input_new;
	bool check, count;                   /* only check the options; only count what the input would train */
	bool allow_media;                    /* records may have tokens that stand for images, ... */
	bool own_metrics;                    /* refuse metrics unless it is a plain file of this user's */
	const char *shares;                  /* of the mt-streams, or NULL */
	const char *eval, *metrics, *config; /* files, or NULL */
	uint64_t eval_every, ckpt_every;     /* 0: never */
	uint64_t stop_after;                 /* evaluations without improvement that end the training; 0: no limit */
	uint64_t max_skipped;                /* skipped steps in a row that end mt-step; 0: no limit */
	struct mt_strings rings;
};

/* Ends the program with 64 and one line if an option is invalid. */
void options_parse(struct options *, int argc, char **argv);

/* Ends the program with 78 if the model has fewer positions than --seq; says if it was trained on fewer. */
void options_check_seq(const struct options *, const struct mt_geometry *);

/* The vocabulary of a model with this config.json, and of a run's model */
struct vocabulary vocabulary_of(const struct options *, const struct mt_geometry *, const char *config, size_t bytes);
struct vocabulary vocabulary_of_run(const struct options *, const struct mt_run *);

#endif
