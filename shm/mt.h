/* mt.h: all of libmt's headers, for a stage of your own. mt's own files include those of mt/ that they need:
 * those to mt/control.h are what lies in shared memory, the others are functions.
 *
 * A run has a name and three regions of shared memory (shm/ABI.md lists them byte by byte):
 *   control  header, geometry, unit and tensor tables, stage slots, reproducibility record, transactions, journal
 *   rings    messages and their payload blocks
 *   store    the state itself: one contiguous tile a unit, cut into arrays w | lo | m | v | g
 *
 * Conventions. A function that can fail returns 0, or minus a sysexits code (-MT_EX_DATA, ...) and leaves one line for
 * people in mt_errmsg(); the library prints nothing and never exits. Offsets in shared memory are bytes from the
 * region's start. "element" is one parameter. Anything read from a ring or a txn is copied once, then checked.
 */
#ifndef MT_H
#define MT_H

#ifdef __cplusplus
#error "mt.h is C; talk to libmt from C++ through a C file"
#endif

#include <stdio.h>
#include <string.h>

#include "mt/version.h"
#include "mt/error.h"
#include "mt/types.h"
#include "mt/model.h"
#include "mt/media.h"
#include "mt/layout.h"
#include "mt/memory.h"
#include "mt/documents.h"
#include "mt/step.h"
#include "mt/control.h"
#include "mt/create.h"
#include "mt/run.h"
#include "mt/wait.h"
#include "mt/stage.h"
#include "mt/ring.h"
#include "mt/txn.h"
#include "mt/snapshot.h"
#include "mt/tier.h"
#include "mt/optimizer.h"
#include "mt/choices.h"

#endif
