package text

import "testing"

func TestClosest(t *testing.T) {
	words := []string{"cluster-cidr", "proxy-mode", "master", "v", "fairway.net/balance", "fairway.net/weights", "fairway.net/weight"}
	for text, want := range map[string]string{
		"clustercidr": "cluster-cidr", "cluster-cidrs": "cluster-cidr", "proxymode": "proxy-mode", "Master": "master", "mastre": "master",
		"fairway.net/blance": "fairway.net/balance", "fairway.net/weight": "fairway.net/weight", "nothing-like-it": "",
	} {
		if got := Closest(text, words); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("from %q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
