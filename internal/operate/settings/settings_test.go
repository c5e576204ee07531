package settings

import (
	"fmt"
	"testing"
)

func TestSplitPairs(t *testing.T) {
	for text, want := range map[string]string{
		"A=1":                            "map[A:1]",
		"A=1,B=2, C_D=3":                 "map[A:1 B:2 C_D:3]",
		"CIDRS=10.0.0.0/8,fd00::/8,B=":   "map[B: CIDRS:10.0.0.0/8,fd00::/8]",
		"LIMITS=ports=10,endpoints=20":   "map[LIMITS:ports=10,endpoints=20]",
		"URL=https://192.0.2.1:6443/?A=": "map[URL:https://192.0.2.1:6443/?A=]",
		"COUNT_TRAFFIC":                  "map[] --set COUNT_TRAFFIC: write KEY=VALUE",
	} {
		pairs, err := SplitPairs([]string{text})
		got := fmt.Sprint(pairs)
		if err != nil {
			got = "map[] " + err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestResolve(t *testing.T) {
	for _, c := range []struct{ host, text, want string }{
		{"", "127.0.0.1:9", "127.0.0.1:9"},
		{"", "127.0.0.1", "127.0.0.1:10281"},
		{"192.0.2.7", "node", "192.0.2.7:10281"},
		{"2001:db8::7", "node", "[2001:db8::7]:10281"},
		{"2001:db8::7", "node:9", "[2001:db8::7]:9"},
		{"", "", ""},
		{"", "node:9", `"node:9" is the address in $HOST_IP, which is "" [give an address]`},
	} {
		t.Setenv(hostIP, c.host)
		got, err := ResolveWithPort(c.text, 10281)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q on %q: %s, want %s", c.text, c.host, got, c.want)
		}
	}
}
