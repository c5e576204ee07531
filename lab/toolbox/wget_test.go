package toolbox

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
)

// TestWget: busybox's wget with a time limit, in every spelling, gets a page and gives up on a server that does not
// answer.
func TestWget(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("a page")) }))
	defer page.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	get := func(args ...string) (string, error) {
		out, err := exec.Command("sh", append([]string{"-c", Wget, "wget"}, args...)...).CombinedOutput()
		return string(out), err
	}
	for _, limit := range []string{"-T 60", "-T60", "--timeout=60", "--timeout 60", "-qT60", "-q"} {
		out, err := get(append(strings.Fields(limit), "-O-", page.URL)...)
		if err != nil || !strings.Contains(out, "a page") {
			t.Errorf("wget %s: %v, %s", limit, err, out)
		}
	}
	if out, err := get("--spider", "--timeout=1", "http://"+silent.Addr().String()); err == nil || !strings.Contains(out, "download timed out") {
		t.Errorf("wget of a silent server: %v, %s", err, out)
	}
}
