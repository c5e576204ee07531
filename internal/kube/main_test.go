package kube

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets more tests run at a time than there are processors: most of the slow ones wait
// for a time that an agent waits, too.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
