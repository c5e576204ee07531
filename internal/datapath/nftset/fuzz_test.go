package nftset

import (
	"bytes"
	"testing"
)

// FuzzKeys: bytes that are no key are refused. A key that is read and written again has the same bytes, except padding.
func FuzzKeys(f *testing.F) {
	f.Add([]byte{10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0}, true, false)
	f.Add([]byte{17, 0, 0, 0, 0, 53, 0, 0}, false, true)
	f.Add(make([]byte, 24), false, false)
	f.Fuzz(func(t *testing.T, b []byte, is4, nodePort bool) {
		if k, err := ParseFrontendKey(b, is4, nodePort); err == nil && (nodePort || !k.Addr.Addr().IsUnspecified()) {
			if again, err := ParseFrontendKey(FrontendKey(k), is4, nodePort); err != nil || again != k {
				t.Errorf("%v is read again as %v, error %v", k, again, err)
			}
		}
		if a, rest, err := ParseAddrPort(b, is4); err == nil {
			if again, _, err := ParseAddrPort(AddrPort(a), is4); err != nil || again != a || !bytes.HasSuffix(b, rest) {
				t.Errorf("%v is read again as %v, error %v, and behind it is %v", a, again, err, rest)
			}
		}
		if n, err := ParseNumber(b); err == nil && !bytes.HasPrefix(b, Number(n)) {
			t.Errorf("%v is read as %d", b, n)
		}
	})
}
