/* losses.c: the table of losses. */
#include <stdio.h>
#include <string.h>

#include "mt/error.h"
#include "mt/losses.h"

#define LOSS(kind, name_, unit_, needs_, ...) \
	[MT_##kind] = {.name = name_, .unit = unit_, .needs = needs_, .option = __VA_ARGS__},

const struct mt_loss_kind mt_losses[] = {MT_LOSSES(LOSS)};

const char *mt_loss_names(char buf[MT_LOSS_NAMES], bool (*is)(const struct mt_loss_kind *, int), int x)
{
	int left = 0, at = 0;
	for (int k = 0; k < MT_LOSS_KINDS; k++) left += !is || is(&mt_losses[k], x);
	buf[0] = 0;
	for (int k = 0; k < MT_LOSS_KINDS; k++)
		if (!is || is(&mt_losses[k], x))
			at += snprintf(buf + at, (size_t)(MT_LOSS_NAMES - at), "%s%s", mt_losses[k].name,
				--left > 1      ? ", "
					: left == 1 ? " or "
								: "");
	return buf;
}

int mt_loss_parse(const char *name, enum mt_objective_kind *kind)
{
	char names[MT_LOSS_NAMES];
	for (*kind = MT_NLL; *kind < MT_LOSS_KINDS; ++*kind)
		if (!strcmp(name, mt_losses[*kind].name)) return 0;
	return mt_fail(MT_EX_USAGE, "--loss: '%s' is not %s", name, mt_loss_names(names, NULL, 0));
}
