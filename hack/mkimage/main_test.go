package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/fairway-net/fairway/internal/image"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

const name = "ghcr.io/fairway-net/fairway"

// with are the options for an archive.
func with(out, binary, name, version string) options {
	return options{out: out, binary: binary, name: name, version: version, licence: "../../LICENSE"}
}

// programs writes two Go programs to pack, this test itself, and returns the path of the first.
func programs(t *testing.T, perm os.FileMode) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "fairway")
	for _, path := range []string{binary, binary + "-cni"} {
		if err := os.WriteFile(path, self, perm); err != nil {
			t.Fatal(err)
		}
	}
	return binary
}

func TestRun(t *testing.T) {
	out := filepath.Join(t.TempDir(), "image.tar")
	err := run(with(out, filepath.Join(t.TempDir(), "fairway"), name, "test"))
	if err == nil || !strings.Contains(err.Error(), "make build") || strings.Contains(err.Error(), "\n") {
		t.Errorf("without a binary: error %v, want one line with advice", err)
	}
	if err := run(with(out, programs(t, 0o755), "fairway", "test")); err == nil || !strings.Contains(err.Error(), "not complete") {
		t.Errorf("with half a name: error %v, want advice", err)
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("an archive was left behind by failures: %v", err)
	}
	if err := run(with(out, programs(t, 0o755), name, "test")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"usr/bin/fairway", "usr/bin/fairway-cni", "fairway", "usr/sbin/nft", "usr/sbin/ip6tables-legacy-restore", "usr/sbin/xtables-nft-multi",
		"etc/passwd", "tmp/", "NOTICE", "LICENSE", "var/lib/dpkg/status", "usr/share/sbom/fairway.spdx.json", "usr/share/doc/nftables/copyright",
		"usr/share/common-licenses/GPL-2", "usr/share/doc/fairway/stdlib/LICENSE", "usr/share/doc/fairway/github.com/google/go-containerregistry/LICENSE",
	} {
		if !inArchive(t, out, want) {
			t.Errorf("the image has no %s", want)
		}
	}
}

// TestSameBytes: the files' owners, times and the umask that they were made with are not in the
// image, so that two builds of the same sources have one digest, and the tag names it.
func TestSameBytes(t *testing.T) {
	var archives, components [2][]byte
	for i, perm := range []os.FileMode{0o755, 0o700} {
		out := filepath.Join(t.TempDir(), "image.tar")
		if err := run(with(out, programs(t, perm), name, "v1")); err != nil {
			t.Fatal(err)
		}
		var err error
		if archives[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
		if components[i], err = os.ReadFile(strings.TrimSuffix(out, ".tar") + ".yaml"); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) || !bytes.Equal(components[0], components[1]) {
		t.Error("the same programs gave different images")
	}
	tag := regexp.MustCompile(`newTag: (v1-[0-9a-f]{12}) # the image with the digest sha256:([0-9a-f]{64})`).FindSubmatch(components[0])
	if tag == nil || !bytes.HasPrefix(tag[2], tag[1][3:]) || !bytes.Contains(archives[0], []byte(name+":"+string(tag[1]))) {
		t.Errorf("the tag is not the digest, or not the archive's:\n%s", components[0])
	}
}

// inArchive looks for a file in the layers of an archive.
func inArchive(t *testing.T, archive, name string) bool {
	t.Helper()
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	for outer := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := outer.Next()
		if errors.Is(err, io.EOF) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(h.Name, "blobs/") {
			continue
		}
		for inner := tar.NewReader(outer); ; {
			f, err := inner.Next()
			if err != nil {
				break // the end of the layer, or a blob that is none
			}
			if f.Name == name {
				return true
			}
		}
	}
}

// rules use every extension that kube-proxy's chains, and ours in mode iptables, have.
const rules = `*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-X - [0:0]
-A PREROUTING -m comment --comment "some words" -m addrtype --dst-type LOCAL -j KUBE-X
-A KUBE-X -m statistic --mode random --probability 0.5 -p tcp -m tcp --dport 80 -j DNAT --to-destination ADDRESS
-A KUBE-X -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-X -m connmark --mark 0x1 -j MARK --set-xmark 0x4000/0x4000
-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
COMMIT
*filter
:INPUT ACCEPT [0:0]
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A INPUT -p udp -m udp --dport 53 -j REJECT
COMMIT
`

// TestProgramsRun runs iptables out of the image, in a network namespace: its extensions are found by name when a
// rule needs them, which no list of libraries shows.
func TestProgramsRun(t *testing.T) {
	testnet.NeedRoot(t, "runs a program in another root directory")
	out, root := filepath.Join(t.TempDir(), "image.tar"), t.TempDir()
	if err := run(with(out, programs(t, 0o755), name, "test")); err != nil {
		t.Fatal(err)
	}
	unpack(t, out, root)
	for _, family := range []struct{ program, to string }{{"iptables", "10.0.0.1:80"}, {"ip6tables", "[fd00::1]:80"}} {
		for _, variant := range []string{"nft", "legacy"} {
			program := family.program + "-" + variant + "-restore"
			path, err := image.Find(program)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(path)
			cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
			cmd.Stdin = strings.NewReader(strings.Replace(rules, "ADDRESS", family.to, 1))
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: syscall.CLONE_NEWNET}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", program, err, out)
			}
		}
	}
}

// unpack writes the files of an image's layers below a directory.
func unpack(t *testing.T, archive, root string) {
	t.Helper()
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	for outer := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := outer.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for inner := tar.NewReader(outer); strings.HasPrefix(h.Name, "blobs/"); {
			f, err := inner.Next()
			if err != nil {
				break // the end of the layer, or a blob that is none
			}
			place(t, filepath.Join(root, f.Name), f, inner)
		}
	}
}

func place(t *testing.T, at string, h *tar.Header, from io.Reader) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(at), 0o755)
	if err == nil {
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(at, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, at)
		default:
			var data []byte
			if data, err = io.ReadAll(from); err == nil {
				err = os.WriteFile(at, data, h.FileInfo().Mode().Perm())
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
