/* ops.h: all operations of a layer. A file that needs few of them includes their headers instead: an edit of the others
 * then does not rebuild it. */
#ifndef MT_STREAM_OPS_H
#define MT_STREAM_OPS_H

#include "activation.h"
#include "altup.h"
#include "attention.h"
#include "balance.h"
#include "combine.h"
#include "common.h"
#include "conv.h"
#include "delta.h"
#include "embed.h"
#include "gate.h"
#include "gemm.h"
#include "grouped.h"
#include "head.h"
#include "mla.h"
#include "norm.h"
#include "rope.h"
#include "route.h"
#include "rows.h"
#include "scan.h"

#endif
