package testnet

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// On a machine that removes namespaces, one look can take seconds, because the removal of their links holds RTNL. The
// kernel's own work waits as long, and is done by a later look.
func TestLookUntilCountsLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := 0
		missing, err := lookUntil(func() (string, error) {
			<-time.After(6 * time.Second) // virtual time
			if seen++; seen < 3 {
				return "the local route", nil
			}
			return "", nil
		})
		if missing != "" || err != nil || seen != 3 {
			t.Errorf("after %d looks: missing %q, error %v", seen, missing, err)
		}
	})
}

func TestLookUntilEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if missing, err := lookUntil(func() (string, error) { return "all", nil }); missing != "all" || err != nil {
			t.Errorf("what never comes: missing %q, error %v", missing, err)
		}
		broken := errors.New("no netlink")
		if _, err := lookUntil(func() (string, error) { return "", broken }); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	})
}

// When a host reports an address, the kernel already accepts packets to it.
func TestAddressesAreUsable(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	usable := func(h *Host) {
		t.Helper()
		links, err := h.link.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			if missing, err := h.unusable(l, false); missing != "" || err != nil {
				t.Errorf("%s of %s: %s, error %v", l.Attrs().Name, h.Name, missing, err)
			}
		}
	}
	for i := range 20 {
		s.node1.AddAddr(netip.MustParseAddr(fmt.Sprintf("fd00:5::%d", i+1)))
		usable(s.node1)
		usable(s.Pod(s.node2, fmt.Sprintf("pod-%d", i), netip.MustParseAddr(fmt.Sprintf("fd00:6::%d", i+1))))
	}
	usable(s.node2)
}
