//go:build !uml

package node

import (
	"bytes"
	"context"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/fairway-net/fairway/internal/testing/uml"
)

var umlRun = flag.String("uml.run", "^TestWireGuard[CERN]|^TestNeighboursAreKept|^TestEgressByIPVS", "tests to run in user-mode Linux")

// TestInUML runs the tests that need WireGuard or a kernel of their own, those with the build tag uml, in user-mode
// Linux, in virtual time. It fails if they could not be run.
func TestInUML(t *testing.T) {
	testnet.NeedRoot(t, "makes links in user-mode Linux, which has the files that the user may read")
	binary, err := uml.Build(t.Context(), "uml", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	var out bytes.Buffer
	status, err := uml.Run(ctx, uml.Options{
		Program: binary, Args: []string{"-test.run", *umlRun, "-test.v", "-test.timeout", "0"}, Dir: dir,
		// What a test writes is in the kernel's memory: the host's files are read-only.
		Env: []string{"TMPDIR=/run", "GOMAXPROCS=1"}, Output: &out, Virtual: true,
	})
	passed := strings.Count(out.String(), "\n--- PASS: Test")
	if err != nil || status != 0 || passed == 0 {
		t.Fatalf("status %d, error %v, %d tests passed; all of the output:\n%s", status, err, passed, out.String())
	}
	t.Logf("%d tests passed in user-mode Linux", passed)
}
