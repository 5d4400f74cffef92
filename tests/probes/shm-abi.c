/* Prints the ABI as shm/README.md lists it: one struct a paragraph, "offset size field". */
#include "abi.h"
#include "mt.h"

static void field(const char *s, const char *f, size_t off, size_t size)
{
	static const char *last = "";
	if (strcmp(s, last)) printf("%s%s\n", *last ? "\n" : "", s);
	last = s;
	printf("%7zu %6zu  %s\n", off, size, f);
}

int main(void)
{
#define FIELD(s, f, off, size) field(#s, #f, offsetof(struct s, f), size);
#define SIZE(s, n) printf("%7zu  %s\n", sizeof(struct s), #s);
	MT_ABI_FIELDS(FIELD)
	printf("\nsizes\n");
	MT_ABI_SIZES(SIZE)
	return 0;
}
