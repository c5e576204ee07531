package dns

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"

	"github.com/fairway-net/fairway/internal/text"
)

// The paths of a Corefile if Config names none, in this order. The Deployment mounts optional ConfigMaps there, so an
// operator only creates, changes or deletes a ConfigMap.
const (
	DefaultCorefile = "/etc/fairway/dns/Corefile" // of the ConfigMap fairway-dns
	// AdoptedCorefile is the Corefile of the ConfigMap coredns. It has CoreDNS's path in clusters of kubeadm, k3s and
	// kind, so its relative paths (NodeHosts, custom/*.server) work.
	AdoptedCorefile = "/etc/coredns/Corefile"
	kubeDNSDir      = "/etc/fairway/kube-dns" // the ConfigMap kube-dns, one file a key
)

// input is a Corefile at one moment.
type input struct {
	caddy.CaddyfileInput
	note   string                  // a remark about the choice, for the log; empty means none
	blocks []caddyfile.ServerBlock // with all imports
	hash   [sha256.Size]byte       // the hash of blocks
}

// Corefile returns the Corefile that Run would serve now.
func (s *Server) Corefile() (string, error) {
	in, err := s.load()
	if err != nil {
		return "", err
	}
	return string(in.Contents), nil
}

// read loads the Corefile, adds the plugin clients, and returns an error if a plugin is unknown.
func (s *Server) read() (in input, err error) {
	if in, err = s.load(); err != nil {
		return in, err
	}
	if in.blocks, err = parseBlocks(in.Filepath, in.Contents); err != nil {
		return in, err
	}
	if block := s.zoneBlock(); block != "" {
		in.Contents = append(bytes.TrimRight(in.Contents, "\n"), block...)
		if in.blocks, err = parseBlocks(in.Filepath, in.Contents); err != nil {
			return in, fmt.Errorf("add the zones %s: %w [write each server block of the Corefile with braces]", strings.Join(s.cfg.Zones, " "), err)
		}
	}
	if unknown := unknownPlugins(in.Filepath, in.blocks); len(unknown) > 0 {
		return in, fmt.Errorf("read Corefile: %s [built in are: %s]", unknown[0], strings.Join(slices.Sorted(slices.Values(Plugins())), " "))
	}
	data, err := json.Marshal(in.blocks)
	if err != nil {
		return in, err
	}
	in.hash = sha256.Sum256(data)
	in.Contents = withClients(in.Filepath, in.Contents, in.blocks)
	setBlocks(in.blocks)
	return in, nil
}

// load returns the Corefile of Config, else the first one at the default paths, else the built-in one.
func (s *Server) load() (in input, err error) {
	paths, flags := s.paths, s.cfg.Kubeconfig != "" || s.cfg.Master != "" || s.cfg.ClusterDomain != defaultDomain
	if s.cfg.Corefile != "" {
		paths = []string{s.cfg.Corefile}
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		switch {
		case err == nil && flags && path == s.adopted:
			in.note = path + " is not taken over: flags say which cluster is served"
			continue
		case err == nil && flags:
			return in, fmt.Errorf("read Corefile: %s says itself which cluster it serves [in its kubernetes block, write the zone and `kubeconfig PATH` or `endpoint URL`, in place of flags]", path)
		case err == nil:
			in.CaddyfileInput = caddy.CaddyfileInput{Filepath: path, Contents: data, ServerTypeName: "dns"}
			return in, nil
		case s.cfg.Corefile != "" || !errors.Is(err, fs.ErrNotExist):
			return in, fmt.Errorf("read Corefile: %w", err)
		}
	}
	data, note, err := s.builtin()
	if err != nil {
		return in, fmt.Errorf("make built-in Corefile: %w", err)
	}
	in.note = strings.Trim(in.note+"; "+note, "; ")
	in.CaddyfileInput = caddy.CaddyfileInput{Filepath: "built-in", Contents: data, ServerTypeName: "dns"}
	return in, nil
}

// parseBlocks reads the server blocks of a Corefile.
func parseBlocks(path string, data []byte) ([]caddyfile.ServerBlock, error) {
	// Without a list of valid directives the parser admits all, so the error for an unknown one can be ours.
	blocks, err := caddyfile.Parse(path, bytes.NewReader(data), nil)
	if err != nil {
		return nil, fmt.Errorf("read Corefile: %w", text.OneLine(err))
	}
	if len(blocks) == 0 {
		return nil, fmt.Errorf("read Corefile: %s has no server block [write at least `. { forward . ADDRESS }`]", path)
	}
	return blocks, nil
}
