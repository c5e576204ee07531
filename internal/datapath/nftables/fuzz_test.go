package nftables

import "testing"

// FuzzElements: comments and keys of elements, which another version may have written, are read or refused. A comment
// or key that is read and written again stays the same.
func FuzzElements(f *testing.F) {
	f.Add("default/web:http rr load-balancer", []byte{10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0, 1, 0, 0, 0}, true, false)
	f.Add("default/web 10800s local", []byte{6, 0, 0, 0, 0, 80, 0, 0, 1, 0, 0, 0}, false, true)
	f.Add("weight 7", []byte{}, false, false)
	f.Add("1:3", []byte{1, 2, 3}, false, false)
	f.Fuzz(func(t *testing.T, text string, key []byte, is4, nodePort bool) {
		var h, again frontendState
		if h.parseComment(text) == nil {
			if err := again.parseComment(h.comment()); err != nil || again.name != h.name || again.balance != h.balance || again.loadBalancer != h.loadBalancer {
				t.Errorf("%q is written as %q, error %v", text, h.comment(), err)
			}
		}
		if n, seconds, err := parseAffinityComment(text, is4); err == nil {
			if m, again, err := parseAffinityComment(n.comment(seconds), is4); err != nil || m != n || again != seconds {
				t.Errorf("%q is written as %q, error %v", text, n.comment(seconds), err)
			}
		}
		if w, err := parseWeight(text); err == nil {
			if again, err := parseWeight(weightComment(w)); err != nil || again != w {
				t.Errorf("%q is written as %q, error %v", text, weightComment(w), err)
			}
		}
		if v, err := parseVerdictText(text); err == nil {
			if again, err := parseVerdictText(v.String()); err != nil || again != v {
				t.Errorf("%q is written as %q, error %v", text, v, err)
			}
			_ = v.chainName()
		}
		_, _, _ = parseSlotKey(key, is4, nodePort)
		_, _ = parseVerdict(key)
	})
}
