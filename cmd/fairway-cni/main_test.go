package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// modules are all that the plugin may be made of.
var modules = []string{
	"github.com/alexflint/go-filemutex",
	"github.com/containernetworking/cni",
	"github.com/containernetworking/plugins",
	"github.com/coreos/go-iptables", // imported by containernetworking's ip, not used
	"github.com/fairway-net/fairway",
	"github.com/pkg/errors",
	"github.com/safchain/ethtool",
	"github.com/vishvananda/netlink",
	"github.com/vishvananda/netns",
	"golang.org/x/sys",
	"sigs.k8s.io/knftables", // as go-iptables
}

// forbidden are packages that would make the program large, slow to start or reachable.
var forbidden = []string{"net/http", "crypto/tls", "text/template", "html/template", "os/signal", "log/slog"}

// TestDependencies: the program that runs as root for each pod stays small.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		pkg, module, _ := strings.Cut(strings.TrimSpace(line), " ")
		if module != "" && !slices.Contains(modules, module) {
			t.Errorf("package %s is of module %s, which the plugin does without", pkg, module)
		}
		if slices.Contains(forbidden, pkg) {
			t.Errorf("package %s makes the plugin large", pkg)
		}
	}
}

// maxSize is of the program in bytes: it was 3.7 MB when it became one of its own.
const maxSize = 6 << 20

// TestProgram builds the program and asks for its versions, as runtimes do first.
func TestProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fairway-cni")
	build := exec.Command("go", "build", "-ldflags", "-s -w -X main.version=v9", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxSize {
		t.Errorf("the program has %d bytes, at most %d", info.Size(), maxSize)
	}
	ask := exec.Command(path)
	ask.Env = []string{"CNI_COMMAND=VERSION"}
	ask.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	out, err := ask.Output()
	if err != nil || !strings.Contains(string(out), `"supportedVersions":["0.3.1"`) {
		t.Errorf("VERSION: %s, %v", out, err)
	}
	about := exec.Command(path)
	about.Env = []string{}
	if out, _ := about.CombinedOutput(); !strings.Contains(string(out), "v9") {
		t.Errorf("without CNI_COMMAND it does not say its version: %s", out)
	}
}
