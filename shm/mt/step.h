/* step.h: what is kept of a step in the control region: its transaction, its figures, its hyperparameters. */
#ifndef LIBMT_STEP_H
#define LIBMT_STEP_H

#include "figures.h"
#include "memory.h"

/* clang-format off */

struct mt_loss { double sum; uint64_t targets; uint32_t nonfinite, entered; };  /* of one micro */

struct mt_txn {
	/* (k 32 bits | attempt 24 bits | phase 8 bits): the only thing that decides */
	_Alignas(64) _Atomic uint64_t word;
	uint64_t reserved0[7];
	/* opened: by mt-step, before the word */
	_Alignas(64) uint64_t step; /* train: turns version step - 1 into step; eval: wants version step */
	uint32_t kind, micros;
	uint64_t targets;           /* of the whole step: loss scale is 1 / targets */
	MT_HYPERPARAMS;             /* as given; mt-optim rounds what it derives */
	/* snapshot this step (read after the commit: a signal may set it in accumulate); the last one */
	uint32_t save, last;
	struct mt_position position;/* after this step's rows */
	MT_FIGURES_MORE(MT_FIGURE_FIELD, ) /* processed: tokens of documents in a training step's rows, without padding */
	uint64_t reserved1[5 - MT_FIGURES_IN_TXN];
	/* outcome: by mt-optim, before it commits */
	_Alignas(64) uint64_t t;    /* Adam's step count after this txn (eval and skip: as before) */
	double   norm;              /* of the gradient before clipping; NaN when not taken */
	double   clip_factor;       /* 1 when not clipped */
	uint32_t skipped, reserved2;
	uint64_t source, source_ring;   /* --grad none: slot word and ring of the mt-stream whose pieces are applied */
	double   aux, z;            /* terms of the loss: mean of the micros', weighted by their targets; NaN: none */
	double   figures[MT_STEP_FIGURES];    /* sums of the micros' messages of figures; 0 where none come */
	uint64_t reserved3[3];
	/* by mt-optim as they come */
	struct mt_loss losses[MT_MICROS];
};

struct mt_figures {             /* what a step's metrics line says */
	uint64_t step;              /* 0: none */
	MT_FIGURES_LAID(MT_FIGURE_FIELD, ) /* loss, norm, lr, tokens (targets), skipped, aux, z, processed: as in the txn */
};

struct mt_hyper {               /* what a training step was made with; 80 bytes */
	uint64_t step;              /* 0: none */
	MT_HYPERPARAMS;
	uint64_t targets;
	uint32_t micros, reserved0;
	uint64_t reserved;
};

/* clang-format on */

#endif
