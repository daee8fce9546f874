# Everything that people and CI run. `make help` lists the targets.

GO           ?= go
VERSION      ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
OPENCODE     ?= 1.18.33
INSPECTOR    ?= 2.12.0
AXE          ?= 4.14.1
GOLANGCI     ?= v2.15.0
FUZZTIME     ?= 30s
COMMANDS     := meshhub meshnode meshctl
PLATFORMS    := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
LDFLAGS      := -s -w -X opencode-mesh/cmd/internal/cli.Version=$(VERSION)
OPENCODE_DIR := .tools/node_modules/opencode-ai
# In a directory of its own: npm removes from one what it did not just install.
INSPECTOR_AT := .tools/mcp-inspector-$(INSPECTOR)
INSPECTOR_DIR := $(INSPECTOR_AT)/node_modules/@modelcontextprotocol/inspector
AXE_AT       := .tools/axe-$(AXE)
AXE_DIR      := $(AXE_AT)/node_modules/axe-core
LINTER       := .tools/bin/golangci-lint-$(GOLANGCI)

# What a shell has set for a mesh of its own must not reach builds and tests.
unexport MESH_PASSWORD MESH_DIR MESH_TASK_TOKEN

.PHONY: help build build-all test test-all faults browser screenshots soak bench demo lint fuzz tools tools-browser clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## static binaries of this platform in bin/
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ $(COMMANDS:%=./cmd/%)

build-all: ## static binaries of every platform in bin/OS-ARCH/
	@set -e; for p in $(PLATFORMS); do \
	  os=$${p%/*} arch=$${p#*/}; mkdir -p bin/$$os-$$arch; echo "building $$p"; \
	  CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/$$os-$$arch/ $(COMMANDS:%=./cmd/%); \
	done

tools: $(OPENCODE_DIR)/package.json $(INSPECTOR_DIR)/package.json ## what the tests need, installed under .tools

$(OPENCODE_DIR)/package.json:
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20 or newer (Debian: apt-get install nodejs npm)" >&2; exit 1; }
	npm install --no-save --no-audit --no-fund --prefix .tools opencode-ai@$(OPENCODE)

# Its command line runs on Node.js 20, though the package asks for 22.
$(INSPECTOR_DIR)/package.json:
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20 or newer (Debian: apt-get install nodejs npm)" >&2; exit 1; }
	@mkdir -p $(INSPECTOR_AT)
	npm install --no-save --no-audit --no-fund --ignore-scripts --prefix $(INSPECTOR_AT) @modelcontextprotocol/inspector@$(INSPECTOR)

$(AXE_DIR)/package.json:
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20 or newer (Debian: apt-get install nodejs npm)" >&2; exit 1; }
	@mkdir -p $(AXE_AT)
	npm install --no-save --no-audit --no-fund --ignore-scripts --prefix $(AXE_AT) axe-core@$(AXE)

tools-browser: tools $(AXE_DIR)/package.json ## axe-core by npm, Chromium and tmux by apt, which the browser tests need
	@missing=""; command -v tmux >/dev/null || missing="$$missing tmux"; \
	  command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing="$$missing chromium"; \
	  if [ -z "$$missing" ]; then exit 0; fi; \
	  if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then echo "missing packages, install them first:$$missing" >&2; exit 1; fi; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  timeout 300 apt-get update -q && timeout 900 apt-get install -y -q --no-install-recommends $$missing

# A package needs three minutes on two idle cores at the most. The bound is for a test
# that hangs, and no machine that is merely slow or busy comes near it.
HANGS := 20m

test: tools ## unit, race and end-to-end tests with the real opencode
	$(GO) vet ./...
	$(GO) test -race -vet=off -timeout $(HANGS) ./...
	$(GO) test -run Gigabyte ./test/services/ # of full size, which the race detector cannot do in time

faults: tools ## kills, frozen networks, full disks, copied directories: real processes
	$(GO) test -tags faults -timeout $(HANGS) -count=1 ./test/faults/...
	$(GO) test -tags faults -timeout $(HANGS) -count=1 -run 'EveryKill|ManyProcesses|ThreeMachines' ./test/e2e/ ./test/opencomms/ # of which the ordinary suite has a part

browser: tools-browser ## the dashboard and the real opencode's web interface in Chromium, and opencode attach in a terminal
	$(GO) test -tags browser -timeout 15m -count=1 ./test/browser/... ./test/dashboard/...

screenshots: tools-browser ## the dashboard's pages as docs/screenshots shows them
	$(GO) test -tags browser,screenshots -timeout 10m -count=1 -run Screenshots ./test/dashboard/

test-all: test faults browser lint build-all demo-check ## all of it: adds fault and browser tests, linters, every platform and the demo

.PHONY: demo-check
demo-check:
	DEMO_EXIT=1 $(MAKE) --no-print-directory demo

soak: tools ## the fault suites for a long time (SOAK=1h)
	MESH_TEST_SOAK=$(or $(SOAK),1h) $(GO) test -tags faults -timeout 0 -count=1 -v -run Soak ./test/faults/...

bench: ## benchmarks that print ratios within one run
	$(GO) test -run '^$$' -bench . -benchtime 2s -timeout 30m ./test/bench/... ./tunnel/ ./store/boltdb/ ./protocol/opencomms/ ./node/ocp/memory/

demo: build ## a hub and two nodes on loopback with the built-in agent (DEMO_EXIT=1 stops at the end)
	@deploy/demo.sh

$(LINTER):
	@mkdir -p .tools/bin
	GOBIN=$(CURDIR)/.tools/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI)
	mv .tools/bin/golangci-lint $@

lint: $(LINTER) ## linters and import rules
	$(LINTER) run ./...

fuzz: ## every fuzz target for FUZZTIME each
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$pkg; \
	  done; \
	done

clean: ## remove what was built, not what was installed
	rm -rf bin
