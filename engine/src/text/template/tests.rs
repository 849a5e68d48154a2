use super::*;

fn render(source: &str, input: &ChatInput) -> Result<String> {
    ChatTemplate::new(source, Map::new())?.render(input)
}

/// Renders with `x` as a variable.
fn with_x(source: &str, x: Json) -> String {
    let kwargs = Map::from_iter([("x".to_owned(), x)]);
    render(source, &ChatInput { kwargs, ..Default::default() })
        .unwrap_or_else(|err| panic!("{source}: {err}"))
}

fn chat(roles: &[(&str, &str)]) -> ChatInput {
    let messages = roles.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    ChatInput { messages, ..Default::default() }
}

/// Expected texts are what Python's `json.dumps` prints with the same arguments.
#[test]
fn tojson_is_pythons() {
    let x = || json!({"b": "é<>&'", "a": [1, true, null]});
    assert_eq!(with_x("{{ x|tojson }}", x()), r#"{"b": "é<>&'", "a": [1, true, null]}"#);
    assert_eq!(with_x("{{ x|tojson(ensure_ascii=False) }}", x()), r#"{"b": "é<>&'", "a": [1, true, null]}"#);
    assert_eq!(
        with_x("{{ x|tojson(ensure_ascii=true) }}", x()),
        r#"{"b": "\u00e9<>&'", "a": [1, true, null]}"#
    );
    let compact = r#"{{ x|tojson(sort_keys=true, separators=(",",":")) }}"#;
    assert_eq!(with_x(compact, x()), r#"{"a":[1,true,null],"b":"é<>&'"}"#);
    let indented = "{\n  \"b\": \"é<>&'\",\n  \"a\": [\n    1,\n    true,\n    null\n  ]\n}";
    assert_eq!(with_x("{{ x|tojson(indent=2) }}", x()), indented);
    assert_eq!(
        with_x("{{ x|tojson }}", json!([1.0, 0.1, 1e20, 1e-7, -0.0, {}, []])),
        "[1.0, 0.1, 1e+20, 1e-07, -0.0, {}, []]"
    );
    assert_eq!(with_x("{{ x|tojson }}", json!("a\n\"\\\u{1}")), r#""a\n\"\\\u0001""#);
}

#[test]
fn absent_tools_are_none() {
    let a = "{% if tools is defined and tools is not none %}taken{% else %}not{% endif %}";
    let b = "{% if tools is not defined %}{% set tools = none %}{% endif %}{% if tools is not none %}taken{% else %}not{% endif %}";
    for source in [a, b] {
        assert_eq!(render(source, &chat(&[])).unwrap(), "not");
        let with = ChatInput { tools: Some(vec![json!({"name": "f"})]), ..Default::default() };
        assert_eq!(render(source, &with).unwrap(), "taken");
    }
}

#[test]
fn templates_are_pythons_jinja() {
    assert_eq!(with_x(r#"{{ " a b ".strip().split(" ")|join("-") }}"#, json!(0)), "a-b");
    assert_eq!(with_x(r#"{{ "x</think>y".split("</think>")[-1].lstrip("\n") }}"#, json!(0)), "y");
    assert_eq!(with_x(r#"{{ "p" if "abc".startswith("ab") else "q" }}"#, json!(0)), "p");
    assert_eq!(
        render("{{ messages[::-1][0].role }}", &chat(&[("user", "a"), ("assistant", "b")])).unwrap(),
        "assistant"
    );
    let namespace = "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}\
                     {% if i == 1 %}{% continue %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}";
    assert_eq!(with_x(namespace, json!(0)), "2");
    assert_eq!(with_x("a{% generation %}b{% endgeneration %}c", json!(0)), "abc");
    assert_eq!(with_x("  {%- generation -%}  b  {%- endgeneration %}\nc", json!(0)), "bc");
    assert_eq!(
        with_x("{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}", json!({"b": 1, "a": "z"})),
        "b=1;a=z;"
    );
    // trim_blocks and lstrip_blocks, as transformers sets them.
    assert_eq!(with_x("x\n    {% if true %}\ny\n    {% endif %}\nz", json!(0)), "x\ny\nz");
    let now = chrono::NaiveDate::from_ymd_opt(2024, 7, 26).unwrap().and_hms_opt(1, 2, 3).unwrap();
    let dated = ChatInput { now, ..Default::default() };
    assert_eq!(render("{{ strftime_now('%d %b %Y') }}", &dated).unwrap(), "26 Jul 2024");
}

#[test]
fn what_a_template_refuses_is_an_error_with_its_words() {
    let message = |source: &str| render(source, &chat(&[])).unwrap_err().to_string();
    assert_eq!(
        message("{{ raise_exception('only alternating roles') }}"),
        "chat template: only alternating roles"
    );
    assert!(
        message("a\n{{ 1|no_such_filter }}").contains("line 2"),
        "{}",
        message("a\n{{ 1|no_such_filter }}")
    );
    assert!(render("{% if %}", &chat(&[])).is_err());
    assert!(render("{{ strftime_now('%!') }}", &chat(&[])).is_err());
}

const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
    {{ raise_exception('System message must be at the beginning') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}";

#[test]
fn a_late_system_message_moves_to_the_front_only_where_it_must() {
    let input =
        chat(&[("system", "S1"), ("user", "U1"), ("assistant", "A1"), ("system", "S2"), ("user", "U2")]);
    let strict = ChatTemplates::from_source(STRICT, Map::new()).unwrap();
    assert_eq!(strict.render(&input).unwrap(), "[system:S1\n\nS2][user:U1][assistant:A1][user:U2]");
    let lenient = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}";
    let lenient = ChatTemplates::from_source(lenient, Map::new()).unwrap();
    assert_eq!(lenient.render(&input).unwrap(), "[system:S1][user:U1][assistant:A1][system:S2][user:U2]");
    let other = chat(&[("user", "U1")]);
    let refusing = ChatTemplates::from_source("{{ raise_exception('no') }}", Map::new()).unwrap();
    assert_eq!(refusing.render(&other).unwrap_err().to_string(), "chat template: no");
}

#[test]
fn a_final_message_is_continued_where_it_stands() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let input =
        ChatInput { continue_final_message: true, ..chat(&[("user", "a"), ("assistant", "The answer")]) };
    assert_eq!(render(source, &input).unwrap(), "<user>a</><assistant>The answer");
    let both = ChatInput { add_generation_prompt: true, ..input };
    assert!(render(source, &both).is_err());
    let prompt = ChatInput { add_generation_prompt: true, ..chat(&[("user", "a")]) };
    assert_eq!(render(source, &prompt).unwrap(), "<user>a</><assistant>");
}

#[test]
fn a_folder_has_its_template_in_one_of_three_places() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    let text = |tools: bool| {
        let tools = tools.then(|| vec![json!({})]);
        ChatTemplates::from_folder(dir.path()).unwrap().render(&ChatInput { tools, ..Default::default() })
    };
    assert!(matches!(text(false), Err(TextError::NoTemplate)));
    let named =
        json!([{"name": "default", "template": "D{{ bos_token }}"}, {"name": "tool_use", "template": "T"}]);
    let config = json!({"chat_template": named, "bos_token": {"content": "<s>"}});
    put("tokenizer_config.json", config.to_string());
    assert_eq!((text(false).unwrap(), text(true).unwrap()), ("D<s>".into(), "T".into()));
    put("chat_template.json", json!({"chat_template": "J"}).to_string());
    assert_eq!(text(false).unwrap(), "J");
    put("chat_template.jinja", "F".into());
    assert_eq!(text(false).unwrap(), "F");
}

#[test]
fn a_damaged_template_is_an_error() {
    for source in ["{%}", "{% generation", "{%}%}", "{% endgeneration %}", "{{", "{% for %}"] {
        let templates = ChatTemplates::from_source(source, Map::new());
        let rendered = templates.and_then(|t| t.render(&ChatInput::default()));
        assert!(matches!(rendered, Err(TextError::Template(_))), "{source}: {rendered:?}");
    }
}
