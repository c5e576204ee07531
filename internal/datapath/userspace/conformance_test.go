package userspace_test

import (
	"testing"

	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/testing/conformance"
)

func TestConformance(t *testing.T) { conformance.Run(t, open) }

func open(t testing.TB) conformance.Datapath {
	dp, err := userspace.New(userspace.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return dp
}
