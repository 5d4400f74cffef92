# make install, make uninstall, and the completions for bash that are made from what programs print with --options.
# PREFIX is where the files will be used, DESTDIR where they are put for now. mt.pc is made here, for this PREFIX.
SCRIPTS   = mt-tokens mt-plot mt-log
COMPLETED = $(PROGRAMS) $(SCRIPTS)
VERSION = $(shell sed -n 's/^\#define MT_VERSION "\(.*\)"/\1/p' shm/mt/version.h)
D = $(DESTDIR)$(PREFIX)
MAN = $(filter-out $(if $(HAVE_CURSES),,%/mt-top.1) $(if $(MPICC),,%/mt-link.1),$(wildcard */*.1 */*/*.1 */*.7))
man_of = share/man/man$(patsubst .%,%,$(suffix $(1)))/$(notdir $(1))

.PHONY: completions install uninstall absolute
completions: $(COMPLETED:%=$(O)/completions/%)
$(SCRIPTS:%=$(O)/completions/%): $(O)/completions/%: bin/%
$(O)/completions/mt-tokens: bin/tokens/options.py
$(O)/completions/mt-run: bin/run/options.sh $(B)/mt-step $(B)/mt-feed
$(PROGRAMS:%=$(O)/completions/%): $(O)/completions/%: $(B)/%
$(COMPLETED:%=$(O)/completions/%): bin/completion.awk
	@mkdir -p $(@D)
	$(QUIET)rows=$$($(filter %/$(@F),$^) --options) && \
	  printf '%s\n' "$$rows" | awk -v program=$(@F) -f bin/completion.awk >$@.$$$$ && mv $@.$$$$ $@

# SYNOPSIS and OPTIONS of the man pages, from the same
.PHONY: man
man: all
	@for page in $(filter %.1,$(MAN)); do \
	  program=$$(basename $$page .1); PATH=$(abspath $(B)):$(CURDIR)/bin:$$PATH; \
	  rows=$$($$program --options) && \
	  printf '%s\n' "$$rows" | awk -v program=$$program -f bin/man.awk - $$page >$(O)/page && \
	  { cmp -s $(O)/page $$page || cat $(O)/page >$$page; } || exit; done

# what install puts below PREFIX
LIBMT_H = shm/mt.h $(wildcard shm/mt/*.h)
PARTS = $(patsubst bin/%,%,$(wildcard bin/run/* bin/tokens/*.py))
INSTALLED = $(COMPLETED:%=bin/%) $(PARTS:%=lib/mt/%) lib/mt/mtshm.py lib/mt/mtweights.py lib/libmt.a lib/$(SONAME) \
  lib/libmt.so lib/pkgconfig/mt.pc $(LIBMT_H:shm/%=include/%) $(foreach m,$(MAN),$(call man_of,$(m))) \
  share/doc/mt/abi.md $(COMPLETED:%=share/bash-completion/completions/%)

absolute:
	@case '$(PREFIX)' in /*) ;; *) echo "PREFIX=$(PREFIX): expected an absolute path" >&2; exit 64;; esac
	@case '$(D)' in *[[:space:]]*) echo "$(D): make cannot install into a path with blanks" >&2; exit 64;; esac
install: absolute all lib completions
	install -d $(sort $(dir $(INSTALLED:%=$(D)/%)))
	install $(PROGRAMS:%=$(B)/%) $(SCRIPTS:%=bin/%) $(D)/bin
	install -m 644 $(filter bin/run/%,$(PARTS:%=bin/%)) $(D)/lib/mt/run
	chmod 755 $(D)/lib/mt/run/mt-run
	install -m 644 $(filter bin/tokens/%,$(PARTS:%=bin/%)) $(D)/lib/mt/tokens
	install -m 644 tests/examples/mtshm.py tests/examples/mtweights.py $(D)/lib/mt
	install -m 644 $(O)/libmt.a $(D)/lib
	install $(O)/libmt.so $(D)/lib/$(SONAME)
	ln -sf $(SONAME) $(D)/lib/libmt.so
	printf '%s\n' 'prefix=$(PREFIX)' 'pythondir=$${prefix}/lib/mt' 'Name: mt' \
	  'Description: memory-centric LLM training: rings, store and transactions' \
	  'Version: $(VERSION)' 'Libs: -L$${prefix}/lib -lmt' 'Libs.private: $(LIBMT_LIBS)' 'Cflags: -I$${prefix}/include' \
	  >$(D)/lib/pkgconfig/mt.pc
	chmod 644 $(D)/lib/pkgconfig/mt.pc
	install -m 644 shm/mt.h $(D)/include
	install -m 644 $(filter-out shm/mt.h,$(LIBMT_H)) $(D)/include/mt
	$(foreach m,$(MAN),install -m 644 $(m) $(D)/$(call man_of,$(m)) && ) :
	cat shm/README.md shm/PROTOCOL.md shm/ABI.md >$(D)/share/doc/mt/abi.md
	chmod 644 $(D)/share/doc/mt/abi.md
	install -m 644 $(COMPLETED:%=$(O)/completions/%) $(D)/share/bash-completion/completions

# Directories that other packages use too stay, even if they are empty.
uninstall: absolute
	rm -f $(INSTALLED:%=$(D)/%)
	rm -rf $(D)/lib/mt/__pycache__
	[ ! -d $(D)/lib/mt ] || rmdir $(D)/lib/mt/run $(D)/lib/mt/tokens $(D)/lib/mt
	[ ! -d $(D)/include/mt ] || rmdir --ignore-fail-on-non-empty $(D)/include/mt
	[ ! -d $(D)/share/doc/mt ] || rmdir --ignore-fail-on-non-empty $(D)/share/doc/mt

# ---- a wheel of the programs that are here, in build/wheel: relocatable, with the libraries that they need
WHEEL = $(O)/wheel
CUBLAS_MAJOR = $(shell sed -n 's/^.define CUBLAS_VER_MAJOR *//p' $(CUBLAS_H:%/cublasLt.h=%/cublas_api.h))
RELOCATABLE = -Wl,--disable-new-dtags,-rpath,\$$$$ORIGIN/../lib/mt
.PHONY: wheel
wheel:
	@rm -rf $(WHEEL)/root
	@mkdir -p $(WHEEL)/bin && ln -sfn $(abspath bin/run) $(WHEEL)/bin/run
	@$(MAKE) --no-print-directory install B=$(WHEEL)/bin PREFIX=/ DESTDIR=$(abspath $(WHEEL))/root MPICC= \
	  LDFLAGS='$(LDFLAGS) $(RELOCATABLE)' >/dev/null
	@.github/wheel $(WHEEL) $(if $(CUDA_OBJ),$(CUBLAS_MAJOR))

# ---- Debian packages in build/deb: mt-train, without CUDA, and where nvcc is, mt-train-cuda, which replaces it
.PHONY: deb
deb:
	@$(if $(CUDA_OBJ),DEB_BUILD_PROFILES=cuda NVCC=$(NVCC) CUDNN_FRONTEND=$(CUDNN_FRONTEND) CUDNN_H=$(CUDNN_H)) \
	  .github/debian/build build/deb

# ---- what these made is installed in bare systems, trains there, and is removed (as root, with debootstrap)
BARE ?= $(shell . /etc/os-release && echo $$VERSION_CODENAME)
.PHONY: wheel-test deb-test
wheel-test: MADE = $(WHEEL)/*.whl
deb-test: MADE = build/deb/*.deb
wheel-test deb-test:
	@tests/distros $(patsubst %,--with %,.github/try $(wildcard $(MADE))) $(BARE) -- sh /home/mt/try
