/* cudnn.cc: attention by cuDNN, through the headers of cudnn-frontend
 *
 * The library is opened at run time; the frontend finds its functions, and those of the CUDA runtime that mt-stream has
 * within itself, through the two functions below. We use the composite graph, as cuDNN's unified operation has no
 * causal mask before 9.21, and never one in its backward. Only deterministic algorithms: if cuDNN has two of them (9.25
 * and later on sm_90), the one whose work memory grows with the tokens, not with their square. Plans are made from a
 * description of the GPU, the same whether the GPU is there or only described.
 */
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "library.h"
#include "sdpa.h"

#define LIBRARY "libcudnn.so.9"

static char own_runtime; /* stands for the CUDA runtime's handle */

static void *find_library(const char *name, int flags)
{
	if (!strncmp(name, "libcudart.so.", 13)) return atoi(name + 13) == CUDART_VERSION / 1000 ? &own_runtime : NULL;
	return dlopen(name, flags);
}

/* The functions of the CUDA runtime that the frontend's code, as compiled here, may ask for: it throws where one is
 * missing, and cuDNN is not used then. Most are for CUDA graphs and autotuning. Those with which an engine for norms
 * loads its own kernels are left out. tests/46-cudnn.bats compares this table with the names in the object file. */
static void *find_function(void *library, const char *name)
{
	static const struct {
		const char *name;
		void *function;
	} runtime[] = {
#define ENTRY(f) {#f, (void *)f}
		ENTRY(cudaDeviceGetAttribute),
		ENTRY(cudaDeviceSynchronize),
		ENTRY(cudaEventCreate),
		ENTRY(cudaEventDestroy),
		ENTRY(cudaEventElapsedTime),
		ENTRY(cudaEventRecord),
		ENTRY(cudaEventSynchronize),
		ENTRY(cudaGetDevice),
#if CUDART_VERSION >= 12080
		ENTRY(cudaGetDriverEntryPointByVersion),
#else
		ENTRY(cudaGetDriverEntryPoint),
#endif
		ENTRY(cudaGetErrorString),
		ENTRY(cudaGetLastError),
		ENTRY(cudaGraphRetainUserObject),
		ENTRY(cudaMemcpyAsync),
		ENTRY(cudaMemsetAsync),
		ENTRY(cudaPointerGetAttributes),
		ENTRY(cudaRuntimeGetVersion),
#if CUDART_VERSION >= 13000
		ENTRY(cudaStreamGetCaptureInfo),
#else
		ENTRY(cudaStreamGetCaptureInfo_v2),
#endif
		ENTRY(cudaStreamIsCapturing),
		ENTRY(cudaStreamSynchronize),
		ENTRY(cudaThreadExchangeStreamCaptureMode),
		ENTRY(cudaUserObjectCreate),
		ENTRY(cudaUserObjectRelease),
#undef ENTRY
	};

	if (library != &own_runtime) return dlsym(library, name);
	for (size_t i = 0; i < sizeof runtime / sizeof *runtime; i++)
		if (!strcmp(runtime[i].name, name)) return runtime[i].function;
	return NULL;
}

#define dlopen find_library
#define dlsym find_function
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#undef dlopen
#undef dlsym

namespace cudnn_frontend
{
void *cudnn_dlhandle;
}
namespace fe = cudnn_frontend;
typedef std::shared_ptr<fe::graph::Tensor_attributes> tensor;

#define OLDEST 90800 /* the first that makes plans from a description */

enum { Q = 1, K, V, O, LSE, D_O, DQ, DK, DV, QKV_AT, O_AT, LSE_AT, LENGTHS }; /* names of tensors in a graph */

struct cudnn {
	struct sdpa sdpa;
	cudnnHandle_t handle; /* NULL: the GPU is only described */
	int sm, sms;
	std::shared_ptr<fe::DeviceProperties> gpu;
};

struct graph_plan {
	struct sdpa_shape shape;
	fe::graph::Graph graph;
};

/* ---- making a plan ---- */

static tensor numbers(fe::graph::Graph &g, int name, int64_t n, fe::DataType_t type)
{
	return g.tensor(fe::graph::Tensor_attributes()
						.set_uid(name)
						.set_dim({n, 1, 1, 1})
						.set_stride({1, 1, 1, 1})
						.set_data_type(type));
}

struct index {
	tensor qkv, o, lse, lengths;
}; /* ragged; else all empty */

static struct index index_of(fe::graph::Graph &g, const struct sdpa_shape &s)
{
	struct index at;
	if (s.ragged) {
		at.qkv = numbers(g, QKV_AT, s.batch + 1, fe::DataType_t::INT64);
		at.o = numbers(g, O_AT, s.batch + 1, fe::DataType_t::INT64);
		at.lse = numbers(g, LSE_AT, s.batch + 1, fe::DataType_t::INT64);
		at.lengths = numbers(g, LENGTHS, s.batch, fe::DataType_t::INT32);
	}
	return at;
}

/* q, k, v and o, and their gradients: (batch, heads, seq, dim) of elements in rows of qkv or o */
static void lay(fe::graph::Tensor_attributes &t, int name, const struct sdpa_shape &s, const struct index &at)
{
	bool is_q = name == Q || name == DQ, out = name == O || name == D_O, values = out || name == V || name == DV;
	int64_t heads = is_q || out ? s.heads : s.kv_heads, dim = values ? s.dim_v : s.dim;
	int64_t row = out ? sdpa_out(&s) : sdpa_row(&s);

	t.set_uid(name).set_dim({s.batch, heads, s.seq, dim}).set_stride({s.seq * row, dim, row, 1});
	if (s.ragged) t.set_ragged_offset(out ? at.o : at.qkv);
}

static void lay_lse(fe::graph::Tensor_attributes &t, const struct sdpa_shape &s, const tensor &at)
{
	t.set_uid(LSE).set_dim({s.batch, s.heads, s.seq, 1}).set_data_type(fe::DataType_t::FLOAT);
	if (at) t.set_stride({s.seq * s.heads, 1, s.heads, 1}).set_ragged_offset(at);
	else t.set_stride({s.heads * s.seq, s.seq, 1, 1});
}

static tensor input(fe::graph::Graph &g, int name, const struct sdpa_shape &s, const struct index &at)
{
	fe::graph::Tensor_attributes t;

	lay(t, name, s, at);
	return g.tensor(t);
}

/* What forward and backward have in common */
template <typename A>
static void mask(A &a, const struct sdpa_shape &s, const struct index &at)
{
	a.set_attn_scale(s.scale)
		.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
		.set_diagonal_band_right_bound(0);
	if (s.window && s.window < s.seq) a.set_diagonal_band_left_bound((int)s.window);
	if (s.ragged) a.set_padding_mask(true).set_seq_len_q(at.lengths).set_seq_len_kv(at.lengths);
}

static void describe_forward(fe::graph::Graph &g, const struct sdpa_shape &s)
{
	struct index at = index_of(g, s);
	fe::graph::SDPA_attributes a;

	a.set_name("forward").set_generate_stats(true).set_implementation(fe::AttentionImplementation_t::COMPOSITE);
	mask(a, s, at);
	auto out = g.sdpa(input(g, Q, s, at), input(g, K, s, at), input(g, V, s, at), a);
	lay(*out[0], O, s, at);
	lay_lse(*out[1], s, at.lse);
	out[0]->set_output(true);
	out[1]->set_output(true);
}

static void describe_backward(fe::graph::Graph &g, const struct sdpa_shape &s)
{
	struct index at = index_of(g, s);
	fe::graph::SDPA_backward_attributes a;
	fe::graph::Tensor_attributes lse;

	a.set_name("backward").set_deterministic_algorithm(true);
	mask(a, s, at);
	lay_lse(lse, s, at.lse);
	auto out = g.sdpa_backward(input(g, Q, s, at), input(g, K, s, at), input(g, V, s, at), input(g, O, s, at),
		input(g, D_O, s, at), g.tensor(lse), a);
	for (int i = 0; i < 3; i++) {
		lay(*out[i], DQ + i, s, at);
		out[i]->set_output(true);
	}
}

static fe::error_t plan_build(struct cudnn *c, struct graph_plan *p, int64_t *bytes)
{
	fe::graph::Graph &g = p->graph;

	g.set_io_data_type(fe::DataType_t::BFLOAT16)
		.set_intermediate_data_type(fe::DataType_t::FLOAT)
		.set_compute_data_type(fe::DataType_t::FLOAT)
		.set_device_properties(c->gpu)
		.set_sm_version(c->sm)
		.set_sm_count(c->sms);
	if (p->shape.backward) describe_backward(g, p->shape);
	else describe_forward(g, p->shape);
	fe::error_t e = g.validate();
	if (e.is_good()) e = g.build_operation_graph();
	if (e.is_good()) e = g.create_execution_plans({fe::HeurMode_t::A});
	if (e.is_good()) e = g.check_support();
	if (e.is_good()) e = g.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
	return e.is_good() ? g.get_workspace_size(*bytes) : e;
}

/* Keep the first line of the reason */
static void keep_why(struct cudnn *c, const char *what)
{
	snprintf(c->sdpa.why, sizeof c->sdpa.why, "%.*s", (int)strcspn(what, "\n"), what);
}

static void *cudnn_plan(struct sdpa *sdpa, const struct sdpa_shape *shape, size_t *bytes)
{
	struct cudnn *c = (struct cudnn *)sdpa;
	int64_t n = 0;
	try {
		std::unique_ptr<struct graph_plan> p(new struct graph_plan);
		p->shape = *shape;
		fe::error_t e = plan_build(c, p.get(), &n);
		if (e.is_good() && n >= 0) {
			*bytes = (size_t)n;
			return p.release();
		}
		keep_why(c, e.get_message().c_str());
	} catch (const std::exception &e) {
		keep_why(c, e.what());
	}
	return NULL;
}

static void cudnn_plan_release(struct sdpa *, void *plan) { delete (struct graph_plan *)plan; }

/* ---- running one ---- */

static int cudnn_run(struct sdpa *sdpa, void *plan, cudaStream_t stream, const struct sdpa_args *a)
{
	struct cudnn *c = (struct cudnn *)sdpa;
	struct graph_plan *p = (struct graph_plan *)plan;
	const struct sdpa_shape &s = p->shape;
	const int64_t k = 2 * s.heads * s.dim, v = k + 2 * s.kv_heads * s.dim;
	char *qkv = (char *)a->qkv, *dqkv = (char *)a->dqkv;

	try {
		std::unordered_map<int64_t, void *> at = {{Q, qkv}, {K, qkv + k}, {V, qkv + v}, {O, a->o}, {LSE, a->lse}};
		if (s.backward) {
			at[D_O] = (void *)a->d_o;
			at[DQ] = dqkv;
			at[DK] = dqkv + k;
			at[DV] = dqkv + v;
		}
		if (s.ragged) {
			at[QKV_AT] = (void *)a->qkv_at;
			at[O_AT] = (void *)a->o_at;
			at[LSE_AT] = (void *)a->lse_at;
			at[LENGTHS] = (void *)a->lengths;
		}
		if (fe::detail::set_stream(c->handle, stream) != CUDNN_STATUS_SUCCESS) {
			keep_why(c, "cudnnSetStream failed");
			return -1;
		}
		fe::error_t e = p->graph.execute(c->handle, at, a->work);
		if (e.is_good()) return 0;
		keep_why(c, e.get_message().c_str());
	} catch (const std::exception &e) {
		keep_why(c, e.what());
	}
	return -1;
}

/* ---- opening ---- */

static bool library_open(char *why)
{
	if (!fe::cudnn_dlhandle) fe::cudnn_dlhandle = library_find("MT_CUDNN", LIBRARY);
	if (!fe::cudnn_dlhandle) {
		snprintf(why, 256, LIBRARY " is not there (MT_CUDNN or LD_LIBRARY_PATH says where it is)");
		return false;
	}
	if (fe::detail::get_backend_version() < OLDEST) {
		snprintf(why, 256, "cuDNN %zu is older than %d", fe::detail::get_backend_version(), OLDEST);
		return false;
	}
	return true;
}

static void cudnn_close(struct sdpa *sdpa)
{
	struct cudnn *c = (struct cudnn *)sdpa;
	if (c->handle) fe::detail::destroy_handle(c->handle);
	delete c; /* the library stays: plans of another handle may use it */
}

static struct cudnn *cudnn_new(int sm, int sms)
{
	size_t v = fe::detail::get_backend_version();
	struct cudnn *c = new struct cudnn();
	c->sdpa.plan = cudnn_plan;
	c->sdpa.plan_release = cudnn_plan_release;
	c->sdpa.run = cudnn_run;
	c->sdpa.close = cudnn_close;
	c->sm = sm;
	c->sms = sms;
	c->gpu = std::make_shared<fe::DeviceProperties>();
	snprintf(c->sdpa.name, sizeof c->sdpa.name, "cuDNN %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
	return c;
}

static struct sdpa *opened(struct cudnn *c, fe::error_t e, char *why)
{
	if (e.is_good()) return &c->sdpa;
	keep_why(c, e.get_message().c_str());
	memcpy(why, c->sdpa.why, sizeof c->sdpa.why);
	cudnn_close(&c->sdpa);
	return NULL;
}

/* Of two deterministic backward algorithms, the one without a (seq, seq) matrix; the frontend reads the environment */
static void prefer_linear(void) { setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", "0", 1); }

struct sdpa *cudnn_open(int ordinal, int sm, int sms, char *why)
{
	try {
		if (!library_open(why)) return NULL;
		prefer_linear();
		struct cudnn *c = cudnn_new(sm, sms);
		if (fe::detail::create_handle(&c->handle) != CUDNN_STATUS_SUCCESS)
			return opened(c, {fe::error_code_t::HANDLE_ERROR, "cudnnCreate failed"}, why);
		return opened(c, c->gpu->set_device_id(ordinal).build(), why);
	} catch (const std::exception &e) {
		snprintf(why, 256, "%s", e.what());
		return NULL;
	}
}

/* cudaDeviceProp in cuDNN's own format. Values that plans do not depend on are those of an H200. */
static std::string description(int sm, int sms, int shared)
{
	int threads = sm == 86 || sm == 89 || sm == 120 ? 1536 : 2048;
	char text[1536];
	snprintf(text, sizeof text,
		"{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
		"\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"smCountOrigin\":0,\"warpSize\":32,"
		"\"maxSharedMemoryPerBlock\":49152,"
		"\"maxSharedMemoryPerBlockOptin\":%d,"
		"\"reservedSharedMemoryPerBlock\":1024,\"oversizedSharedMemoryPerBlock\":%d,"
		"\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,"
		"\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":150000000000,"
		"\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,\"memoryBusWidth\":6144,\"l2CacheSize\":52428800,"
		"\"cudaDeviceId\":0,"
		"\"deviceVer\":%d,\"driverVer\":13000,\"deviceName\":\"described\"}",
		sms, shared, shared, threads, sm * 10);
	return text;
}

struct sdpa *cudnn_describe(int sm, int sms, int shared, char *why)
{
	try {
		if (!library_open(why)) return NULL;
		prefer_linear();
		std::string text = description(sm, sms, shared);
		struct cudnn *c = cudnn_new(sm, sms);
		return opened(c, c->gpu->deserialize(std::vector<uint8_t>(text.begin(), text.end())), why);
	} catch (const std::exception &e) {
		snprintf(why, 256, "%s", e.what());
		return NULL;
	}
}
