# Everything a person needs: make demo, make test. The rest serves these two.
# All of it runs as root: real kernels want it.

VERSION  ?= v0.1.0-dev
# The same flags everywhere, so that Kubernetes is compiled once.
export GOFLAGS := -trimpath -buildvcs=false
LDFLAGS  := -s -w -X main.version=$(VERSION)
# What kubelet and kubectl say of themselves; Kubernetes' own build sets these.
K8S_VERSION := v1.37.1
K8S_LDFLAGS := -X k8s.io/component-base/version.gitVersion=$(K8S_VERSION) \
               -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37
export CGO_ENABLED := 0

# Programs by Debian's and Ubuntu's names: what the lab, its images and the demo use, and
# what the tests use besides.
DEMO_PACKAGES := nftables iproute2 containerd runc iptables kmod tcpdump bind9-dnsutils netcat-openbsd \
                 wget busybox bash curl dash iputils-ping procps ca-certificates \
                 ipvsadm conntrack net-tools bsdextrautils
PACKAGES      := $(DEMO_PACKAGES) gcc libc6-dev bird2 \
                 linux-source make patch flex bison bc xz-utils binutils

.PHONY: help help-test generate build deps man chart image release images lab demo test test-user lint bench fuzz clean

# make help lists most of these. The heavy ones are in test/Makefile: make help-test.
help:
	@grep -hE '^## ' Makefile | sed 's/^## /  make /'
help-test:
	@grep -hE '^## ' test/Makefile | sed 's/^## /  make /'

# What the tests need: packages by apt, by name, and the modules.
deps:
	@hack/packages $(PACKAGES)
	@hack/stage "downloading modules" sh -c 'go mod download && (cd lab && go mod download) && (cd test/chart && go mod download) && cd test/peers && go mod download'

## generate: the programs of mode ebpf, with clang 14 of Debian 12 (clang-14, llvm-14, libbpf-dev)
generate:
	go generate ./internal/datapath/ebpf

## build: bin/fairway and the CNI plugin bin/fairway-cni, static
build:
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

# Debian's packages with the files of the image that are not ours.
IMAGE_PACKAGES := nftables iptables ca-certificates netbase base-files

## image: bin/fairway-image.tar, loadable by containerd, docker and podman; ARCH=arm64: bin/fairway-image-arm64.tar
ifeq ($(ARCH),)
image: build
	go run ./hack/mkimage -o bin/fairway-image.tar -version $(VERSION)
else
image: bin/debian-$(ARCH)
	GOARCH=$(ARCH) go build -ldflags '$(LDFLAGS)' -o bin/$(ARCH)/ ./cmd/...
	go run ./hack/mkimage -binary bin/$(ARCH)/fairway -root $< -o bin/fairway-image-$(ARCH).tar -version $(VERSION)
endif

# The files of an architecture, from Debian's packages of today. Remove it, and the next image has newer ones.
bin/debian-%: hack/debian-root
	@hack/stage "unpacking Debian's packages for $*" hack/debian-root $* $@ $(IMAGE_PACKAGES) && touch $@

## man: the manual pages of all commands, in bin/man/man1
man: build
	@rm -rf bin/man
	bin/fairway man bin/man/man1

## chart: the Helm chart bin/fairway-VERSION.tgz, and its files in bin/chart
chart:
	@rm -rf bin/chart && mkdir -p bin
	go run ./hack/mkchart -version $(VERSION) -dir bin/chart

## release: bin/release, what is published: programs, image and SBOMs for two architectures, chart, checksums, notes
ARCHITECTURES := amd64 arm64
release:
	@rm -rf bin/release bin/release.tmp
	@for arch in $(ARCHITECTURES); do \
	  hack/stage "unpacking Debian's packages for $$arch" hack/debian-root $$arch bin/release.tmp/debian-$$arch $(IMAGE_PACKAGES) && \
	  hack/stage "building for $$arch" env GOARCH=$$arch go build -ldflags '$(LDFLAGS)' -o bin/release.tmp/$$arch/ ./cmd/... || exit 1; done
	@go run ./hack/mkrelease -version $(VERSION) $(ARCHITECTURES) && rm -rf bin/release.tmp

# The lab's built-in images, bin/images/*.tar.
images:
	cd lab && go run ./images/cmd/mkimages -o ../bin/images

## lab: bin/fairway-lab, a whole cluster in one program (4 minutes from an empty cache)
lab:
	cd lab && go build -ldflags '$(LDFLAGS) $(K8S_LDFLAGS)' -o ../bin/fairway-lab ./cmd/fairway-lab
	ln -sf fairway-lab bin/kubectl

## demo: install what is missing, build, run a three-node cluster, the seeds' application, packets reaching pods
demo:
	@hack/packages $(DEMO_PACKAGES)
	@hack/stage "downloading modules" sh -c 'go mod download && cd lab && go mod download'
	@hack/stage "building fairway and its image" $(MAKE) image
	@hack/stage "building the lab's images" $(MAKE) images
	@hack/stage "building the lab: Kubernetes' control plane, kubelet, etcd (minutes from an empty cache)" $(MAKE) lab
	@go run ./hack/demo

## test: install what is missing, build, run every test; SEEDS=N as for test-peers
test: deps build image images lab cni-plugins uml bin/kube-proxy bin/frr bin/nameservers bin/gotestsum
	@$(MAKE) --no-print-directory -j2 test-product test-others

## test-user: what an ordinary user can test; says what it leaves out; PKG=./internal/podnetwork/cni for one
test-user:
	@mkdir -p bin; go test -v $(or $(PKG),./...) >bin/test-user.log 2>&1; status=$$?; \
	grep -E '^(ok|FAIL|panic:|left out:|    --- FAIL|--- FAIL)' bin/test-user.log; \
	test $$status = 0 || { echo "make test-user: all of the output is in bin/test-user.log" >&2; exit $$status; }

# Not of the lab and test/peers: it would analyse all of Kubernetes first.
## lint: what staticcheck finds, all of its checks (a minute of two cores from an empty cache)
lint:
	go tool staticcheck ./...
	go tool staticcheck -tags uml ./internal/datapath/ipvs ./internal/podnetwork/node

## bench: print the figures that docs/performance.md keeps
bench: build image images lab uml
	go test -run '^$$' -bench . -benchtime 20x ./internal/datapath/nftables ./internal/podnetwork/node ./internal/podnetwork/plan ./internal/podnetwork/cni ./internal/flow/conntrack
	go test -run '^$$' -bench Modes -benchtime 1x ./internal/datapath
	go test -run '^$$' -bench Ways -benchtime 1x ./internal/datapath/ebpf
	go test -run '^$$' -bench InUML -benchtime 1x ./internal/datapath/ipvs
	@hack/packages haproxy
	go test -run '^$$' -bench . -benchtime 10x ./internal/datapath/userspace
	bin/fairway-lab down && bin/fairway-lab up && bin/fairway-lab status && bin/fairway-lab down

## fuzz: each fuzzer for FUZZTIME
FUZZTIME ?= 20s
fuzz:
	@hack/fuzz $(FUZZTIME) $$(go list ./internal/...)

## clean: remove bin
clean:
	rm -rf bin

# The parts of make test, and all that is not in CI.
include test/Makefile
