/* choices.h: the reproducibility record and its choices. */
#ifndef LIBMT_CHOICES_H
#define LIBMT_CHOICES_H

#include <stdbool.h>
#include <stddef.h>

#include "memory.h"

/* clang-format off */

struct mt_run;

/* The reproducibility record once it stands; NULL: nothing was computed yet. Acquire. */
const struct mt_record *mt_record(const struct mt_run *);
/* May this stage decide what the record says? One stage at a time may; the others wait (doorbell) until the record is
 * there or that stage has died. */
bool mt_record_claim(struct mt_run *);
/* Set the record: its fields from chunk_tokens to machine are those of `from` from now on. Only for the stage that
 * claimed the record, and for a program that fills the run. */
void mt_record_set(struct mt_run *, const struct mt_record *from);
/* 0, or 78: the record names another device, machine, GEMM library or attention backend than mine, which would give
 * other bits. The record does not change. */
int mt_record_agrees(const struct mt_run *, const struct mt_record *mine);
/* The value (`bytes` of it) that stands for key. false: nobody has chosen, or a value of another size */
bool mt_choice_find(const struct mt_run *, const char *key, void *value, size_t bytes);
/* Let the value stand for key, unless one does already; *value is then what stands. 0; 71: the table is full; 65: what
 * stands is of another size. Several stages may do so at once; none waits. In other nodes than 0 it waits for node 0's;
 * 69: the run was removed meanwhile, or as mt_stage_over. */
int mt_choice_enter(struct mt_run *, const char *key, void *value, size_t bytes);
/* Of mt-streams whose devices differ, each computes a fixed share of every step's micro-batches: "3,1". Their choices
 * stand apart, with keys that begin with the stream's name, and so does each one's machine. mt_shares: the text that
 * stands; false: the streams are alike. mt_shares_enter, for mt-step, before the first step: 78 if others stand.
 * mt_machine_enter, for mt-stream I of such a run: from now on its choices are apart; 78 if another machine's stand. */
bool mt_shares(const struct mt_run *, char text[MT_CHOICE_VALUE]);
int mt_shares_enter(struct mt_run *, const char *text);
int mt_machine_enter(struct mt_run *, int i, const char *machine);
/* For mt-link: the proposals that wait, one a call, with what they propose; false: none. */
bool mt_choice_proposed(struct mt_run *, struct mt_choice *out);
/* The entry after `e` (NULL: the first), or NULL. The list may grow meanwhile. */
const struct mt_choice *mt_choice_next(const struct mt_run *, const struct mt_choice *e);

/* clang-format on */

#endif
