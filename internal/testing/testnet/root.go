package testnet

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
)

// leftOut counts the tests that NeedRoot has skipped, by the reason.
var leftOut = struct {
	sync.Mutex
	tests map[string]int
}{tests: map[string]int{}}

// NeedRoot skips the test if the process is not root. what is the reason, for example "makes network namespaces". Main
// prints the number of skipped tests of a package. Root never skips a test: if the kernel lacks a feature, the test
// fails.
func NeedRoot(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	leftOut.Lock()
	leftOut.tests[what]++
	leftOut.Unlock()
	t.Skipf("needs root: it %s [sudo go test]", what)
}

// reportLeftOut writes a line for each kind of test that NeedRoot has skipped.
func reportLeftOut(out io.Writer) {
	leftOut.Lock()
	defer leftOut.Unlock()
	for _, what := range slices.Sorted(maps.Keys(leftOut.tests)) {
		fmt.Fprintf(out, "left out: %d tests that need root: each %s\n", leftOut.tests[what], what)
	}
}
