// Oracle of the job-file language: evaluates HCL with the libraries that Nomad uses.
//
// It reads cases as JSON lines from standard input and answers each with a JSON line. A case is an
// expression or a whole body. The answer is the value as text, a refusal, or a skip where the result is
// unknown to the library itself.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"sort"
	"strings"

	"github.com/hashicorp/go-cty-funcs/cidr"
	"github.com/hashicorp/go-cty-funcs/crypto"
	"github.com/hashicorp/go-cty-funcs/encoding"
	"github.com/hashicorp/go-cty-funcs/filesystem"
	"github.com/hashicorp/go-cty-funcs/uuid"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	ctyyaml "github.com/zclconf/go-cty-yaml"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

type question struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

type answer struct {
	Value string `json:"value,omitempty"`
	Error string `json:"error,omitempty"`
	Skip  string `json:"skip,omitempty"`
}

func main() {
	log.SetOutput(io.Discard)
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := bufio.NewWriter(os.Stdout)
	context := &hcl.EvalContext{Functions: functions(), Variables: variables()}
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			break
		}
		var asked question
		if err := json.Unmarshal(line, &asked); err != nil {
			fmt.Fprintln(os.Stderr, "cannot read a case:", err)
			os.Exit(1)
		}
		encoder := json.NewEncoder(output)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(evaluate(asked, context)); err != nil {
			fmt.Fprintln(os.Stderr, "cannot write an answer:", err)
			os.Exit(1)
		}
		if input.Buffered() == 0 {
			output.Flush()
		}
	}
	output.Flush()
}

func evaluate(asked question, context *hcl.EvalContext) (result answer) {
	defer func() {
		// The library turns its own panics into refusals.
		if strings.Contains(result.Error, "panic in function implementation") {
			result = answer{Skip: "panic of the library"}
		}
		if fault := recover(); fault != nil {
			result = answer{Skip: fmt.Sprint(fault)}
		}
	}()
	start := hcl.Pos{Line: 1, Column: 1}
	var text strings.Builder
	switch asked.Kind {
	case "expression":
		expression, diags := hclsyntax.ParseExpression([]byte(asked.Text), "case", start)
		if diags.HasErrors() {
			return answer{Error: diags.Error()}
		}
		value, diags := expression.Value(context)
		if diags.HasErrors() {
			return answer{Error: diags.Error()}
		}
		write(&text, value)
	case "body":
		file, diags := hclsyntax.ParseConfig([]byte(asked.Text), "case", start)
		if diags.HasErrors() {
			return answer{Error: diags.Error()}
		}
		if err := writeBody(&text, file.Body.(*hclsyntax.Body), context); err != nil {
			return answer{Error: err.Error()}
		}
	default:
		return answer{Skip: "unknown kind " + asked.Kind}
	}
	if strings.Contains(text.String(), unknown) {
		return answer{Skip: "unknown value"}
	}
	return answer{Value: text.String()}
}

const unknown = "\x00unknown"

func writeBody(text *strings.Builder, body *hclsyntax.Body, context *hcl.EvalContext) error {
	names := make([]string, 0, len(body.Attributes))
	for name := range body.Attributes {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		value, diags := body.Attributes[name].Expr.Value(context)
		if diags.HasErrors() {
			return diags
		}
		text.WriteString(name + " = ")
		write(text, value)
		text.WriteString("; ")
	}
	for _, block := range body.Blocks {
		text.WriteString(block.Type)
		for _, label := range block.Labels {
			text.WriteString(" ")
			writeText(text, label)
		}
		text.WriteString(" { ")
		if err := writeBody(text, block.Body, context); err != nil {
			return err
		}
		text.WriteString("} ")
	}
	return nil
}

func write(text *strings.Builder, value cty.Value) {
	kind := value.Type()
	switch {
	case !value.IsKnown():
		text.WriteString(unknown)
	case value.IsNull():
		text.WriteString("null")
	case kind == cty.Bool:
		fmt.Fprint(text, value.True())
	case kind == cty.Number:
		text.WriteString(value.AsBigFloat().Text('f', -1))
	case kind == cty.String:
		writeText(text, value.AsString())
	case kind.IsMapType() || kind.IsObjectType():
		text.WriteString(map[bool]string{true: "map", false: "object"}[kind.IsMapType()])
		text.WriteString("{")
		for iterator := value.ElementIterator(); iterator.Next(); {
			key, element := iterator.Element()
			writeText(text, key.AsString())
			text.WriteString(": ")
			write(text, element)
			text.WriteString(", ")
		}
		text.WriteString("}")
	default:
		switch {
		case kind.IsListType():
			text.WriteString("list")
		case kind.IsSetType():
			text.WriteString("set")
		default:
			text.WriteString("tuple")
		}
		text.WriteString("[")
		for iterator := value.ElementIterator(); iterator.Next(); {
			_, element := iterator.Element()
			write(text, element)
			text.WriteString(", ")
		}
		text.WriteString("]")
	}
}

func writeText(text *strings.Builder, found string) {
	text.WriteString(`"`)
	for _, letter := range found {
		switch {
		case letter == '"' || letter == '\\':
			text.WriteRune('\\')
			text.WriteRune(letter)
		case letter < ' ' || letter > '~':
			fmt.Fprintf(text, "\\u{%x}", letter)
		default:
			text.WriteRune(letter)
		}
	}
	text.WriteString(`"`)
}

// Names that generated expressions use. The test declares the same.
func variables() map[string]cty.Value {
	number := func(digits string) cty.Value { return cty.MustParseNumberVal(digits) }
	return map[string]cty.Value{
		"text":  cty.StringVal("Hello, wörld"),
		"count": number("3"),
		"tuple": cty.TupleVal([]cty.Value{number("1"), cty.StringVal("b"), cty.True}),
		"object": cty.ObjectVal(map[string]cty.Value{
			"a": number("1"), "b": cty.StringVal("x"), "c": cty.TupleVal([]cty.Value{number("5")}),
		}),
		"list": cty.ListVal([]cty.Value{cty.StringVal("c"), cty.StringVal("a"), cty.StringVal("b")}),
		"set":  cty.SetVal([]cty.Value{number("10"), number("9"), number("1")}),
		"map":  cty.MapVal(map[string]cty.Value{"k": number("7"), "j": number("8")}),
	}
}

// Nomad's functions under Nomad's names, and those of the standard library that Muster has besides.
func functions() map[string]function.Function {
	return map[string]function.Function{
		"abs":             stdlib.AbsoluteFunc,
		"abspath":         filesystem.AbsPathFunc,
		"base64decode":    encoding.Base64DecodeFunc,
		"base64encode":    encoding.Base64EncodeFunc,
		"basename":        filesystem.BasenameFunc,
		"can":             tryfunc.CanFunc,
		"ceil":            stdlib.CeilFunc,
		"chomp":           stdlib.ChompFunc,
		"chunklist":       stdlib.ChunklistFunc,
		"cidrhost":        cidr.HostFunc,
		"cidrnetmask":     cidr.NetmaskFunc,
		"cidrsubnet":      cidr.SubnetFunc,
		"cidrsubnets":     cidr.SubnetsFunc,
		"coalesce":        stdlib.CoalesceFunc,
		"coalescelist":    stdlib.CoalesceListFunc,
		"compact":         stdlib.CompactFunc,
		"concat":          stdlib.ConcatFunc,
		"contains":        stdlib.ContainsFunc,
		"convert":         typeexpr.ConvertFunc,
		"csvdecode":       stdlib.CSVDecodeFunc,
		"dirname":         filesystem.DirnameFunc,
		"distinct":        stdlib.DistinctFunc,
		"element":         stdlib.ElementFunc,
		"flatten":         stdlib.FlattenFunc,
		"floor":           stdlib.FloorFunc,
		"format":          stdlib.FormatFunc,
		"formatdate":      stdlib.FormatDateFunc,
		"formatlist":      stdlib.FormatListFunc,
		"indent":          stdlib.IndentFunc,
		"index":           stdlib.IndexFunc,
		"join":            stdlib.JoinFunc,
		"jsondecode":      stdlib.JSONDecodeFunc,
		"jsonencode":      stdlib.JSONEncodeFunc,
		"keys":            stdlib.KeysFunc,
		"length":          stdlib.LengthFunc,
		"log":             stdlib.LogFunc,
		"lookup":          stdlib.LookupFunc,
		"lower":           stdlib.LowerFunc,
		"max":             stdlib.MaxFunc,
		"md5":             crypto.Md5Func,
		"merge":           stdlib.MergeFunc,
		"min":             stdlib.MinFunc,
		"parseint":        stdlib.ParseIntFunc,
		"pathexpand":      filesystem.PathExpandFunc,
		"pow":             stdlib.PowFunc,
		"range":           stdlib.RangeFunc,
		"regex_replace":   stdlib.RegexReplaceFunc,
		"replace":         stdlib.ReplaceFunc,
		"reverse":         stdlib.ReverseFunc,
		"setintersection": stdlib.SetIntersectionFunc,
		"setproduct":      stdlib.SetProductFunc,
		"setsubtract":     stdlib.SetSubtractFunc,
		"setunion":        stdlib.SetUnionFunc,
		"sha1":            crypto.Sha1Func,
		"sha256":          crypto.Sha256Func,
		"sha512":          crypto.Sha512Func,
		"signum":          stdlib.SignumFunc,
		"slice":           stdlib.SliceFunc,
		"sort":            stdlib.SortFunc,
		"split":           stdlib.SplitFunc,
		"strlen":          stdlib.StrlenFunc,
		"strrev":          stdlib.ReverseFunc,
		"substr":          stdlib.SubstrFunc,
		"timeadd":         stdlib.TimeAddFunc,
		"title":           stdlib.TitleFunc,
		"trim":            stdlib.TrimFunc,
		"trimprefix":      stdlib.TrimPrefixFunc,
		"trimspace":       stdlib.TrimSpaceFunc,
		"trimsuffix":      stdlib.TrimSuffixFunc,
		"try":             tryfunc.TryFunc,
		"upper":           stdlib.UpperFunc,
		"urlencode":       encoding.URLEncodeFunc,
		"uuidv5":          uuid.V5Func,
		"values":          stdlib.ValuesFunc,
		"yamldecode":      ctyyaml.YAMLDecodeFunc,
		"yamlencode":      ctyyaml.YAMLEncodeFunc,
		"zipmap":          stdlib.ZipmapFunc,
	}
}
