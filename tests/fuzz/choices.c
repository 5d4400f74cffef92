/* The reproducibility record's table of choices with arbitrary links: walks and look-ups end. */
#include "fuzz.h"
#include "lib.h"
#include "mt/choices.h"
#include "mt/control.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct {
		struct mt_control control;
		_Alignas(64) struct mt_choice table[MT_CHOICES];
	} * c;
	struct bytes in = {data, size};
	if (!c && !(c = aligned_alloc(64, (sizeof *c + 63) / 64 * 64))) abort();
	memset(c, 0, sizeof *c);
	c->control.off_choices = (uint64_t)((char *)c->table - (char *)c);
	struct mt_run run = {.name = "x", .control = &c->control};
	atomic_store(&c->control.record.first, take_u32(&in));
	while (in.n) {
		uint16_t i;
		take(&in, &i, 2);
		struct mt_choice *e = &c->table[i % MT_CHOICES];
		take(&in, e->key, 4);
		take(&in, &e->bytes, 4);
		atomic_store(&e->next, take_u32(&in));
	}
	const struct mt_choice *e = NULL;
	uint8_t value[MT_CHOICE_VALUE];
	for (int i = 0; i < MT_CHOICES && (e = mt_choice_next(&run, e)); i++) mt_choice_find(&run, "none", value, e->bytes);
	mt_choice_find(&run, "abc", value, 4);
	return 0;
}
