/* count.h: --count: how many steps an input makes. */
#ifndef COUNT_H
#define COUNT_H

#include "options.h"

/* Pack all records of fd as training does, and print documents, rows and steps as one JSON object on stdout. 0; -65:
 * the input is invalid or has no record; -74: stdout cannot be written. */
int count_input(const struct options *, int fd);

#endif
