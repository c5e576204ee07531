package ipam

import (
	"net/netip"
	"testing"
)

func TestParseRange(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.0/24":                "192.0.2.0-192.0.2.255",
		"192.0.2.77/28":               "192.0.2.64-192.0.2.79",
		"192.0.2.1/32":                "192.0.2.1-192.0.2.1",
		"10.0.0.0/7":                  "10.0.0.0-11.255.255.255",
		"192.0.2.10-192.0.2.20":       "192.0.2.10-192.0.2.20",
		"192.0.2.10 - 192.0.2.10":     "192.0.2.10-192.0.2.10",
		"2001:db8::/64":               "2001:db8::-2001:db8::ffff:ffff:ffff:ffff",
		"2001:db8::/121":              "2001:db8::-2001:db8::7f",
		"2001:db8::1-2001:db8::ff":    "2001:db8::1-2001:db8::ff",
		"::ffff:192.0.2.0/120":        "192.0.2.0-192.0.2.255",
		"0.0.0.0/0":                   "0.0.0.0-255.255.255.255",
		"::ffff:192.0.2.0/64":         "",
		"192.0.2.0":                   "",
		"192.0.2.0/33":                "",
		"192.0.2.20-192.0.2.10":       "",
		"192.0.2.1-2001:db8::1":       "",
		"fe80::1%eth0-fe80::2%eth0":   "",
		"192.0.2.1-192.0.2.2-1.2.3.4": "",
		"":                            "",
	} {
		r, err := ParseRange(text)
		if want == "" {
			if err == nil {
				t.Errorf("%q is read as %v", text, r)
			}
			continue
		}
		if err != nil || r.String() != want {
			t.Errorf("%q: %v %v, want %s", text, r, err, want)
		}
		if !r.Contains(r.First) || !r.Contains(r.Last) || r.Contains(r.Last.Next()) || r.Contains(r.First.Prev()) {
			t.Errorf("%q: its ends", text)
		}
	}
}

func FuzzParseRange(f *testing.F) {
	f.Add("192.0.2.0/24")
	f.Add("192.0.2.1-192.0.2.2")
	f.Add("::ffff:1.2.3.4/120")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRange(text)
		if err != nil {
			return
		}
		again, err := ParseRange(r.String())
		if err != nil || again != r || r.Last.Less(r.First) || r.First.Is4() != r.Last.Is4() || r.First.Is4In6() {
			t.Errorf("%q: %v, read again %v %v", text, r, again, err)
		}
	})
}

func TestPoolContains(t *testing.T) {
	r, err := ParseRange("192.0.2.0/23")
	if err != nil {
		t.Fatal(err)
	}
	p := &Pool{Ranges: []Range{r}}
	avoiding := &Pool{Ranges: []Range{r}, AvoidBuggyIPs: true}
	for text, want := range map[string][2]bool{
		"192.0.2.0": {true, false}, "192.0.2.1": {true, true}, "192.0.2.255": {true, false}, "192.0.3.0": {true, false},
		"192.0.4.1": {false, false}, "2001:db8::": {false, false},
	} {
		a := netip.MustParseAddr(text)
		if p.Contains(a) != want[0] || avoiding.Contains(a) != want[1] {
			t.Errorf("%s: %v, avoiding %v, want %v", text, p.Contains(a), avoiding.Contains(a), want)
		}
	}
}
