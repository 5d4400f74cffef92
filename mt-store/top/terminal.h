/* terminal.h: mt-top's screen on a terminal, by ncurses. */
#ifndef TOP_TERMINAL_H
#define TOP_TERMINAL_H

#include "screen.h"

enum { KEY_NONE_YET = 0, KEY_NEW_SIZE = -1, KEY_LOST = -2 };

/* 0, or -MT_EX_USAGE: stdin and stdout are no terminal, or one of unknown type. From then on the terminal is restored
 * by terminal_end, and by signals that kill this process. */
int terminal_begin(void);
void terminal_end(void); /* does nothing without terminal_begin */
void terminal_size(int *rows, int *cols);
void terminal_show(const struct screen *);
/* A key, or what happened; waits up to that many milliseconds. KEY_LOST: the terminal is gone */
int terminal_key(int ms);

#endif
