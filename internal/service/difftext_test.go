package service

import (
	"net/netip"
	"strings"
	"testing"
)

func TestWriteDiff(t *testing.T) {
	frontend := func(name string, ip byte) *Frontend {
		return &Frontend{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, ip}), 80), Proto: TCP,
			Service:  PortName{Name: Name{"ns", name}},
			Internal: &Route{Action: Reject}, External: &Route{Action: Reject},
		}
	}
	have := NewTable(Settings{}, []*Frontend{frontend("same", 1), frontend("gone", 2)})
	want := NewTable(Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, []*Frontend{frontend("same", 1), frontend("new", 3)})
	var text strings.Builder
	if differ, err := WriteDiff(&text, have, want); !differ || err != nil {
		t.Errorf("they differ: %v, %v", differ, err)
	}
	for _, line := range strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n") {
		if !strings.HasPrefix(line, "- ") && !strings.HasPrefix(line, "+ ") {
			t.Errorf("line %q has no sign", line)
		}
	}
	for part, is := range map[string]bool{"10.96.0.1:80": false, "- 10.96.0.2:80": true, "+ 10.96.0.3:80": true, "10.244.0.0/16": true} {
		if strings.Contains(text.String(), part) != is {
			t.Errorf("%q is in the difference: %v; all:\n%s", part, !is, &text)
		}
	}
	text.Reset()
	if differ, err := WriteDiff(&text, want, want); differ || err != nil || text.Len() > 0 {
		t.Errorf("a table differs from itself: %v, %v, %q", differ, err, &text)
	}
	if only := have.Only(Name{"ns", "gone"}); only == nil || only.Entry(Name{"ns", "same"}) != nil || only.Entry(Name{"ns", "gone"}) == nil {
		t.Errorf("the table of one Service: %v", only)
	}
	if have.Only(Name{"ns", "new"}) != nil {
		t.Error("a Service that is not in the table has one")
	}
}
