/* ops-case.h: what a case of ops.c is made of: memory, random numbers, operations, results. Included by ops.c.
 *
 * A case draws its operands, notes its operations with RUN() and their results with expect(), computes by definition
 * what these are, and ends with CHECK(). That runs the operations with pools of 1, 2 and 3 threads, each time on copies
 * of all arrays, at another alignment: the bits must be the same. Then the results are compared with the definition:
 * the norm of the error against the norm of the result.
 */
enum { POOLS = 3, BLOCKS = 1024, NOTED = 16, PARTS = 128 };

enum { CPU = 1, GPU = 2 }; /* where a case runs, if not everywhere */

static int failures;
static struct pool *pools[POOLS]; /* of 1, 2 and 3 threads */
static uint64_t seed = 1;
static double slack; /* least bound: for devices that round elements (cuda-kernels.c) */
static int on_gpu;   /* the operations are those of a GPU (cuda-kernels.c) */
static int on_card;  /* of one that is not emulated */
static int brief;    /* large cases in fewer forms, as an emulator is slow */
static int of_bf16;  /* attention rounds its operands */

__attribute__((format(printf, 2, 3))) static void say(int ok, const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	printf("%s ", ok ? "ok" : "FAILED");
	vprintf(format, ap);
	printf("\n");
	va_end(ap);
	failures += !ok;
}

static int is_here(int64_t on) { return !!(on & (on_gpu ? GPU : CPU)); }
static const char *yes(int is, const char *words) { return is ? words : ""; }

/* ---- memory: everything of a case is freed with it; `skew` floats off alignment ---- */

static struct block {
	char *base, *at;
	size_t bytes;
	int skewed;
	char *copies[POOLS]; /* of an array of the case, in each run */
} kept[BLOCKS];
static int kept_n, arrays, skew, in_run; /* the first `arrays` blocks are the case's, behind them are copies */

static void *keep_at(size_t bytes, int skewed)
{
	char *p = calloc(1, bytes + 64);
	if (!p || kept_n == BLOCKS) {
		fprintf(stderr, "ops: out of memory\n");
		exit(1);
	}
	kept[kept_n] = (struct block){.base = p, .at = p + 4 * skew * skewed, .bytes = bytes, .skewed = skewed};
	return kept[kept_n++].at;
}

static void *keep(size_t bytes) { return keep_at(bytes, 1); }

static void release(int but)
{
	while (kept_n > but) free(kept[--kept_n].base);
}

/* Where this run of a case has what p points at: in a copy of the array, made when it is first asked for */
static void *moved(const void *p)
{
	for (int i = 0; i < arrays; i++) {
		struct block *b = &kept[i];
		size_t off = (uintptr_t)p - (uintptr_t)b->at;
		if (off >= b->bytes) continue;
		if (!b->copies[in_run]) b->copies[in_run] = memcpy(keep_at(b->bytes, b->skewed), b->at, b->bytes);
		return b->copies[in_run] + off;
	}
	return (void *)p;
}

static double *doubles(int64_t n) { return keep_at((size_t)n * sizeof(double), 0); }
static uint32_t *indices(int64_t n) { return keep((size_t)n * sizeof(uint32_t)); }

static float *not_numbers(int64_t n)
{
	return memset(keep((size_t)n * sizeof(float)), 0xff, (size_t)n * sizeof(float));
}

static float *again(const float *x, int64_t n) { return memcpy(keep((size_t)n * sizeof *x), x, (size_t)n * sizeof *x); }

static double *widened(const float *x, int64_t n)
{
	double *y = doubles(n);
	for (int64_t i = 0; i < n; i++) y[i] = (double)x[i];
	return y;
}

/* x's rows (N, width), `ld` apart, NaN between them */
static float *apart(const float *x, int64_t n, int64_t width, int64_t ld)
{
	float *y = not_numbers(n * ld);
	for (int64_t t = 0; t < n; t++) memcpy(y + t * ld, x + t * width, (size_t)width * sizeof *y);
	return y;
}

/* ---- random numbers: each case draws the same ones, whatever cases are before it ---- */

/* From 0 to 1 */
static double uniform(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(seed >> 11) * 0x1p-53;
}

/* about normal, unit variance */
static float *random_floats(int64_t n)
{
	float *x = keep((size_t)n * sizeof *x);
	for (int64_t i = 0; i < n; i++) x[i] = (float)((uniform() + uniform() + uniform() + uniform() - 2) * 1.7320508);
	return x;
}

/* x, rounded to bf16 */
static uint16_t *narrowed(const float *x, int64_t n)
{
	uint16_t *half = keep((size_t)n * sizeof *half);
	op_narrow(pools[0], half, x, n);
	return half;
}

static float *round_to_bf16(float *x, int64_t n)
{
	op_widen(pools[0], x, narrowed(x, n), n);
	return x;
}

/* Numbers that bf16 has */
static float *random_operand(int64_t n, int bf16)
{
	float *x = random_floats(n);
	return bf16 ? round_to_bf16(x, n) : x;
}

/* Numbers that a device's elements have */
static float *random_elements(int64_t n) { return random_operand(n, n && slack > 0); }

/* documents of the given length (0: one a row), padding in the last `padding` tokens of a row, each a document */
static uint32_t *documents(int64_t rows, int64_t seq, int64_t length, int64_t padding)
{
	uint32_t *starts = indices(rows * seq);
	for (int64_t t = 0; t < rows * seq; t++) {
		int64_t at = t % seq;
		starts[t] = (uint32_t)(at >= seq - padding ? at : length ? at / length * length : 0);
	}
	return starts;
}

/* ---- definitions ---- */

/* The derivative of f at *x, in whose ctx *x is: a central difference */
static double difference(double *x, double step, double (*f)(const void *ctx), const void *ctx)
{
	double was = *x, up, down;
	*x = was + step;
	up = f(ctx);
	*x = was - step;
	down = f(ctx);
	*x = was;
	return (up - down) / (2 * step);
}

static double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }

/* ---- the operations of a case ---- */

static struct op noted[NOTED];
static int noted_n;

#define RUN(code, args) note(OP_##code, &(args), sizeof(args))

static void note(enum op_code code, const void *args, size_t bytes)
{
	if (noted_n == NOTED) abort();
	noted[noted_n].code = code;
	memcpy(&noted[noted_n++].copy, args, bytes);
}

static void attend(struct pool *pool, const struct attention_args *a)
{
	if (of_bf16) attention_bf16_forward(pool, a);
	else op_attention_forward(pool, a);
}

static void attend_back(struct pool *pool, const struct attention_args *a)
{
	if (of_bf16) attention_bf16_backward(pool, a);
	else op_attention_backward(pool, a);
}

static void execute(struct pool *pool, const struct op *o)
{
#define RUN_OP(number, op, args, name) \
	case OP_##number: op_##op(pool, &o->args); break;
	if (of_bf16 && o->code == OP_ATTENTION_FORWARD) {
		attention_bf16_forward(pool, &o->attention);
	} else if (of_bf16 && o->code == OP_ATTENTION_BACKWARD) {
		attention_bf16_backward(pool, &o->attention);
	} else {
		switch (o->code) {
		case OP_GEMM:
			op_gemm(pool, &o->gemm);
			break;
			OPS(RUN_OP)
		default: abort();
		}
	}
}

/* An operation with all pointers into the case's arrays moved, whatever its arguments are */
static struct op moved_op(const struct op *of)
{
	struct op o = *of;
	for (char *at = (char *)&o.copy; at + sizeof(void *) <= (char *)(&o + 1); at += sizeof(void *)) {
		void *p;
		memcpy(&p, at, sizeof p);
		p = moved(p);
		memcpy(at, &p, sizeof p);
	}
	return o;
}

/* ---- their results ---- */

#define IN_FP32(bound) (-(bound))

static struct part {
	const char *name;
	const char *at;             /* an array of the case, of n rows of `width` elements, `ld` apart */
	const double *want;         /* (n, width); NULL: the same bits as `twin` */
	int64_t n, width, ld, size; /* bytes of an element: floats, or doubles */
	double bound; /* of the error's norm, relative to the norm of `want`; IN_FP32: of sums that no device rounds */
	int added;    /* to what the array has had */
	const void *twin;
} parts[PARTS];
static int parts_n, twins_agree, bits_agree; /* of what expect_same() names; of all runs */
static double worst_error;

static struct part *add_part(struct part p)
{
	if (parts_n == PARTS) abort();
	parts[parts_n] = p;
	return &parts[parts_n++];
}

/* At x, which has what the operation begins with, n rows. What is NaN between rows must stay so. */
static float *expect_rows_in(float *x, const char *name, const double *want, int64_t n, int64_t width, int64_t ld,
	double bound)
{
	add_part((struct part){name, (char *)x, want, n, width, ld, sizeof *x, bound, 0, NULL});
	return x;
}

static float *expect_rows(const char *name, const double *want, int64_t n, int64_t width, int64_t ld, double bound)
{
	return expect_rows_in(not_numbers(n * ld), name, want, n, width, ld, bound);
}

static float *expect_in(float *x, const char *name, const double *want, int64_t n, double bound)
{
	return expect_rows_in(x, name, want, 1, n, n, bound);
}

static float *expect(const char *name, const double *want, int64_t n, double bound)
{
	return expect_in(not_numbers(n), name, want, n, bound);
}

/* Added to random numbers, or in place of NaN */
static float *expect_sum_rows(const char *name, const double *want, int64_t n, int64_t width, int64_t ld, double bound,
	int added)
{
	float *x = added ? apart(random_floats(n * width), n, width, ld) : not_numbers(n * ld);
	expect_rows_in(x, name, want, n, width, ld, bound);
	parts[parts_n - 1].added = added;
	return x;
}

static float *expect_sum(const char *name, const double *want, int64_t n, double bound, int added)
{
	return expect_sum_rows(name, want, 1, n, n, bound, added);
}

static void *expect_doubles(const char *name, const double *want, int64_t n, double bound)
{
	double *x = doubles(n);
	add_part((struct part){name, (char *)x, want, 1, n, n, sizeof *x, bound, 0, NULL});
	return x;
}

/* x (n) and y have the same bits: either may be a result, or what the case has written */
static void expect_same(const char *name, const void *x, const void *y, int64_t n)
{
	add_part((struct part){name, x, NULL, 1, n, n, sizeof(float), 0, 0, y});
}

/* A result that is these bits */
static void *expect_bits(const char *name, const void *want, int64_t n)
{
	void *x = not_numbers(n);
	expect_same(name, x, want, n);
	return x;
}

static double element(const struct part *p, const char *x, int64_t row, int64_t i)
{
	float single;
	double wide;
	x += (row * p->ld + i) * p->size;
	if (p->size == sizeof wide) return memcpy(&wide, x, sizeof wide), wide;
	return memcpy(&single, x, sizeof single), (double)single;
}

static double error_of(const struct part *p, const char *got)
{
	double error = 0, norm = 0;
	for (int64_t row = 0; row < p->n; row++)
		for (int64_t i = 0; i < p->width; i++) {
			double want = p->want[row * p->width + i] + (p->added ? element(p, p->at, row, i) : 0);
			double d = element(p, got, row, i) - want;
			error += d * d;
			norm += want * want;
		}
	return sqrt(error) / (sqrt(norm) + 1e-30);
}

static int kept_between(const struct part *p, const char *got)
{
	int good = 1;
	for (int64_t row = 0; row < p->n; row++)
		for (int64_t i = p->width; i < p->ld; i++)
			good &= !isnan(element(p, p->at, row, i)) || isnan(element(p, got, row, i));
	return good;
}

static int same_rows(const struct part *p, const char *x, const char *y)
{
	for (int64_t row = 0; row < p->n; row++, x += p->ld * p->size, y += p->ld * p->size)
		if (memcmp(x, y, (size_t)(p->width * p->size))) return 0;
	return 1;
}

/* Where a run of the case has x, until forget() */
static const void *seen(const void *x, int in)
{
	in_run = in;
	return moved(x);
}

/* Has every run these bits, and are they right? */
static int part_is_good(const struct part *p)
{
	const char *got = seen(p->at, 0);
	int good = 1;
	for (int i = 0; i < POOLS; i++) {
		bits_agree &= same_rows(p, seen(p->at, i), got);
		good &= p->want || same_rows(p, seen(p->at, i), seen(p->twin, i));
	}
	if (!p->want) {
		twins_agree &= good;
		if (!good) printf("  %s: other bits\n", p->name);
		return good;
	}
	double e = error_of(p, got), bound = p->bound < 0 ? -p->bound : fmax(p->bound, slack);
	good = e <= bound;
	if (!good) printf("  %s%s: error %.2g, bound %.2g\n", p->name, yes(p->added, ", added"), e, bound);
	if (!kept_between(p, got)) printf("  %s: written between rows\n", p->name);
	worst_error = fmax(worst_error, e);
	return good && kept_between(p, got);
}

static char case_name[200];

/* A case is over */
static void forget(void)
{
	release(0);
	arrays = noted_n = parts_n = 0;
	seed = 1;
}

/* Run the operations: are their results right? */
static int run_case(void)
{
	int good = 1;
	arrays = kept_n;
	for (in_run = 0; in_run < POOLS; in_run++) {
		skew = in_run;
		for (int i = 0; i < noted_n; i++) {
			struct op o = moved_op(&noted[i]);
			execute(pools[in_run], &o);
		}
	}
	skew = 0;
	twins_agree = bits_agree = 1;
	worst_error = 0;
	for (int i = 0; i < parts_n; i++) good &= part_is_good(&parts[i]);
	return bits_agree && good;
}

/* The case's arrays stay until forget() */
__attribute__((format(printf, 1, 2))) static void compare(const char *format, ...)
{
	int good = run_case();
	va_list ap;
	va_start(ap, format);
	vsnprintf(case_name, sizeof case_name, format, ap);
	va_end(ap);
	say(good, "%s (error %.1e%s)", case_name, worst_error, yes(!bits_agree, ", bits depend on threads or alignment"));
}

#define CHECK(...) (compare(__VA_ARGS__), forget())
